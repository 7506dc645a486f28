"""msgpack for what is not a record: message headers and the state of processors.

Map keys may be text, bytes or integers, so that a state keyed by version survives a round trip.
State is sealed: msgpack reads most flipped bits as another value, and compaction makes the broker's
own checksums anew.
"""

from typing import Any

import msgpack
import xxhash

from astra_stream.errors import SchemaError

MAX_BYTES = 64 * 1024 * 1024
"""Most bytes that ``unpack`` takes; a changelog entry is far smaller."""
SEAL_BYTES = 8
"""xxh3-64 of key and value, before the value."""


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


def seal(key: bytes, value: Any) -> bytes:
    """Write what ``pack`` writes, so that ``unseal`` knows whether it is whole and under its key.

    Raises:
        SchemaError: As for ``pack``.
    """
    data = pack(value)
    return _checksum(key, data) + data


def unseal(key: bytes, sealed: bytes) -> Any:
    """Read what ``seal`` wrote under the same key.

    Raises:
        SchemaError: Key or value is not as it was written.
    """
    checksum, data = sealed[:SEAL_BYTES], sealed[SEAL_BYTES:]
    if checksum != _checksum(key, data):
        raise SchemaError(
            f"state must be as it was sealed: got {len(sealed)} bytes of another checksum under "
            f"{key!r}. Nothing else may write to this topic; restore it from a replica."
        )
    return unpack(data)


def _checksum(key: bytes, data: bytes) -> bytes:
    digest = xxhash.xxh3_64(key)
    digest.update(data)
    return digest.digest()


def _refuse(code: int, _: bytes) -> Any:
    raise ValueError(f"extension type {code}")
