"""Records to bytes and back: Avro single-object encoding, schemas found by their fingerprint.

What is read is checked by the same rules as what is written: both make the record.
"""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import fastavro

from astra_stream.errors import RecordError, SchemaError
from astra_stream.log.conversion import Convert, record_conversion
from astra_stream.log.interface import Message
from astra_stream.log.schemas import RECORDS, classes, load_schemas

MARKER = b"\xc3\x01"
"""First bytes of Avro single-object encoding."""
HEADER_BYTES = 10

R = TypeVar("R")

_MALFORMED = (EOFError, IndexError, OverflowError, TypeError, ValueError)
_ILL_TYPED = (AttributeError, OverflowError, TypeError, ValueError)


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
        self._writers: dict[type, tuple[bytes, Any, Convert]] = {}
        self._readers: dict[bytes, Callable[[bytes], Any]] = {}
        current: dict[str, tuple[Any, Convert]] = {}
        for schema in load_schemas(schemas_directory):
            header, parsed = MARKER + schema.fingerprint, schema.parsed
            if schema.is_current:
                cls = RECORDS[schema.record]
                to_plain, from_plain = record_conversion(schema.definition, classes(cls))
                self._writers[cls] = (header, parsed, to_plain)
                self._readers[header] = _reader(parsed, from_plain)
                current[schema.record] = (parsed, from_plain)
            else:
                self._readers.setdefault(header, _older_reader(parsed, *current[schema.record]))

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
            header, schema, to_plain = self._writers[type(record)]
        except KeyError:
            raise TypeError(
                f"a record must be one of {sorted(RECORDS)}: got {type(record).__name__}. "
                "Send the record that holds it."
            ) from None
        out = io.BytesIO()
        out.write(header)
        try:
            fastavro.schemaless_writer(out, schema, to_plain(record))
        except _ILL_TYPED as error:
            raise SchemaError(
                f"{type(record).__name__} must hold the types of its schema: got {error}. "
                "Compare the fields with schemas/."
            ) from error
        return out.getvalue()

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

    def read(self, cls: type[R], message: Message) -> R:
        """Read the record of a message where nobody can go on without it.

        Raises:
            SchemaError: It is no record of this class, or breaks its rules; names where it stands.
        """
        try:
            return self.decode_as(cls, message.value or b"")
        except RecordError as error:
            raise SchemaError(f"{message.coordinates}: {error}") from error

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


def _reader(schema: Any, from_plain: Convert) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        return from_plain(_plain(data, schema, None))

    return decode


def _older_reader(written: Any, current: Any, from_plain: Convert) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        # A default is the schema's own object: no record may share it.
        return from_plain(copy.deepcopy(_plain(data, written, current)))

    return decode


def _plain(data: bytes, written: Any, current: Any) -> Any:
    body = io.BytesIO(data)
    body.seek(HEADER_BYTES)
    plain = fastavro.schemaless_reader(body, written, current)
    if body.tell() != len(data):
        raise SchemaError(
            f"a record must end with its last field: got {len(data)} bytes where it takes "
            f"{body.tell()}. Check whether it was cut off or joined."
        )
    return plain
