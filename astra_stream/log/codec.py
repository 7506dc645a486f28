"""Records to bytes and back: Avro single-object encoding, schemas found by their fingerprint.

What is read is checked by the same rules as what is written: both make the record.
"""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import fastavro

from astra_stream.errors import RecordError, SchemaError
from astra_stream.log.avro_python import Read, Write
from astra_stream.log.avro_reader import ReaderMaker
from astra_stream.log.avro_writer import WriterMaker
from astra_stream.log.schemas import RECORDS, Schema, classes, load_schemas

MARKER = b"\xc3\x01"
"""First bytes of Avro single-object encoding."""
HEADER_BYTES = 10

R = TypeVar("R")

_MALFORMED = (struct.error, IndexError, EOFError, ValueError, OverflowError, KeyError)
_ILL_TYPED = (struct.error, AttributeError, TypeError, ValueError)


class Codec:
    """Encodes every record of ``records`` and decodes what this or an earlier version wrote.

    Safe to share between threads.
    """

    def __init__(self, schemas_directory: Path) -> None:
        """Load the schemas and make the functions.

        Args:
            schemas_directory: Holds ``<record>.avsc`` and ``history/<record>/*.avsc``.

        Raises:
            ConfigError: A schema is missing or does not parse.
        """
        self._directory = schemas_directory
        self._writers: dict[type, tuple[bytes, Write]] = {}
        self._readers: dict[bytes, Callable[[bytes], Any]] = {}
        current: dict[str, tuple[Schema, Read]] = {}
        for schema in load_schemas(schemas_directory):
            if schema.is_current:
                cls = RECORDS[schema.record]
                header = MARKER + schema.fingerprint
                self._writers[cls] = (header, WriterMaker().write(schema.definition))
                read = ReaderMaker(classes(cls)).read(schema.definition)
                current[schema.record] = (schema, read)
                self._readers[header] = _whole(read, HEADER_BYTES)
            else:
                header = MARKER + schema.fingerprint
                self._readers.setdefault(header, _resolved(schema, *current[schema.record]))

    def encode(self, record: Any) -> bytes:
        """Write a record.

        Args:
            record: One of the classes in ``log.schemas.RECORDS``.

        Returns:
            Marker, fingerprint of the schema, Avro body.

        Raises:
            SchemaError: A field holds another type than its schema's.
            TypeError: It is no record that travels by itself.
        """
        try:
            header, write = self._writers[type(record)]
        except KeyError:
            raise TypeError(
                f"a record must be one of {sorted(RECORDS)}: got {type(record).__name__}. "
                "Send the record that holds it."
            ) from None
        pieces = [header]
        try:
            write(record, pieces.append)
        except _ILL_TYPED as error:
            raise SchemaError(
                f"{type(record).__name__} must hold the types of its schema: got {error}. "
                "Compare the fields with schemas/."
            ) from error
        return b"".join(pieces)

    def decode(self, data: bytes) -> Any:
        """Read a record, whichever of the known schemas wrote it.

        Arrays are read-only.

        Raises:
            SchemaError: The bytes are no record, or one of an unknown schema.
            RecordError: A field breaks the record's own rules.
        """
        read = self._readers.get(data[:HEADER_BYTES])
        if read is None:
            raise self._unknown(data)
        try:
            return read(data)
        except RecordError:
            raise
        except _MALFORMED as error:
            raise SchemaError(
                f"a record must follow the schema that it names: got {error!r} within "
                f"{len(data)} bytes. Check whether it was cut off."
            ) from error

    def decode_as(self, cls: type[R], data: bytes) -> R:
        """Read a record that must be of one class.

        Raises:
            SchemaError: As for ``decode``, or it is another record.
            RecordError: A field breaks the record's own rules.
        """
        record = self.decode(data)
        if not isinstance(record, cls):
            raise SchemaError(
                f"the record must be a {cls.__name__}: got {type(record).__name__}. "
                "Check which topic it was written to."
            )
        return record

    def _unknown(self, data: bytes) -> SchemaError:
        if len(data) < HEADER_BYTES or data[:2] != MARKER:
            return SchemaError(
                f"a record must begin with {MARKER.hex()} and a fingerprint: got "
                f"{data[:HEADER_BYTES].hex()!r} of {len(data)} bytes. "
                "Check that only Astra Stream writes to this topic."
            )
        return SchemaError(
            f"a record's schema must be in {self._directory.name}/: got fingerprint "
            f"{data[2:HEADER_BYTES].hex()}. Upgrade to the version that wrote it."
        )


def _whole(read: Read, start: int) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        record, end = read(data, start)
        if end != len(data):
            raise SchemaError(
                f"a record must end with its last field: got {len(data)} bytes where it takes "
                f"{end}. Check whether it was cut off or joined."
            )
        return record

    return decode


def _resolved(written: Schema, current: Schema, read: Read) -> Callable[[bytes], Any]:
    """Rewrite to the current schema, then read: rare, so its cost does not matter."""
    old, new, decode = written.parsed, current.parsed, _whole(read, 0)

    def decode_older(data: bytes) -> Any:
        body = io.BytesIO(data[HEADER_BYTES:])
        value = fastavro.schemaless_reader(body, old, new)
        if body.read(1):
            raise SchemaError(
                "a record must end with its last field: got bytes after it. "
                "Check whether two were joined."
            )
        out = io.BytesIO()
        fastavro.schemaless_writer(out, new, value)
        return decode(out.getvalue())

    return decode_older
