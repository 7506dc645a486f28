"""What is larger than a record may be is refused by name."""

import pytest

from astra_stream.errors import RecordError
from astra_stream.log.interface import FRAMING_BYTES, require_size


def test_a_record_of_just_the_limit_passes() -> None:
    headers = [("group_id", b"g")]
    require_size("t", b"key", bytes(96), headers=headers, limit_bytes=FRAMING_BYTES + 100)


def test_a_record_above_the_limit_is_named_with_its_size_the_limit_and_what_to_do() -> None:
    with pytest.raises(RecordError) as refused:
        require_size("t", b"p/3", bytes(98), headers=(), limit_bytes=FRAMING_BYTES + 100)
    assert str(refused.value) == (
        "t: record 'p/3' must have at most 228 bytes: got 229. Make it smaller, or raise the "
        "topic's max.message.bytes up to 16777216."
    )
