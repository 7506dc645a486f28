"""msgpack for what is not a record: message headers and the state of processors.

Map keys may be text, bytes or integers, so that a state keyed by version survives a round trip.
"""

from typing import Any

import msgpack

from astra_stream.errors import SchemaError

MAX_BYTES = 64 * 1024 * 1024
"""Most bytes that ``unpack`` takes; a changelog entry is far smaller."""


def pack(value: Any) -> bytes:
    """Write None, booleans, 64-bit integers, floats, text, bytes, lists and maps of these.

    A tuple is read back as a list. Equal values with equal order of keys give equal bytes.

    Raises:
        SchemaError: The value holds anything else, or is larger than ``MAX_BYTES``.
    """
    try:
        data: Any = msgpack.packb(value, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SchemaError(
            f"state and headers must hold plain values: got {error}. "
            "Store text, numbers, bytes, lists and maps."
        ) from error
    if len(data) > MAX_BYTES:
        raise SchemaError(
            f"state and headers must have at most {MAX_BYTES} bytes: got {len(data)}. "
            "Keep less under one key."
        )
    return data


def unpack(data: bytes) -> Any:
    """Read what ``pack`` wrote; refuses trailing bytes and extension types.

    Raises:
        SchemaError: The bytes are not one whole value.
    """
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=False,
            ext_hook=_refuse,
        )
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError) as error:
        raise SchemaError(
            f"state and headers must be one msgpack value: got {error!r} in {len(data)} bytes. "
            "Check that nothing else writes to this topic."
        ) from error


def _refuse(code: int, _: bytes) -> Any:
    raise ValueError(f"extension type {code}")
