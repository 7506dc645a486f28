"""A dead letter fits into a message, whatever it is about, and its record can be written again."""

import pytest

from astra_stream.cli.dead_letters import RunLog, summary, write_again
from astra_stream.declarations import declared
from astra_stream.errors import AstraStreamError, RecordError, SchemaError
from astra_stream.log.codec import Codec
from astra_stream.log.dead_letters import CUT_BYTES, MAX_RECORD_BYTES, make_dead_letter
from astra_stream.log.interface import MAX_MESSAGE_BYTES, Message, Partition, require_size
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.records import DeadLetter

CODEC = Codec(declared("schemas"))
NAMES = TopicNames("t")
TOPIC = NAMES.trajectories("main")
ALMOST_ALL = MAX_MESSAGE_BYTES - 1000
LARGE = {
    "value": Message(TOPIC, 0, 7, b"k", b"v" * ALMOST_ALL, 0, (("group_id", b"g"),)),
    "key": Message(TOPIC, 0, 7, b"k" * ALMOST_ALL, b"v", 0),
    "header": Message(TOPIC, 0, 7, b"k", b"v", 0, (("h", b"h" * ALMOST_ALL),)),
    "header's name": Message(TOPIC, 0, 7, b"k", b"v", 0, (("h" * ALMOST_ALL, b""),)),
}
large = pytest.mark.parametrize("message", LARGE.values(), ids=LARGE)


def letter_for(message: Message, error: Exception) -> DeadLetter:
    return make_dead_letter(message, error, service="s", stage="s", now_s=0.0)


@large
@pytest.mark.parametrize(
    "error", [RecordError("𝄞" * MAX_MESSAGE_BYTES), ValueError("𝄞" * MAX_MESSAGE_BYTES)], ids=type
)
def test_a_letter_about_the_largest_record_and_the_longest_error_fits_into_a_message(
    message, error
):
    letter = letter_for(message, error)
    value = CODEC.encode(letter)
    require_size("t", b"k", value, headers=(), limit_bytes=MAX_MESSAGE_BYTES)
    assert letter.is_cut
    assert letter.num_bytes > ALMOST_ALL
    assert (letter.topic, letter.partition, letter.offset) == (TOPIC, 0, 7)
    assert CODEC.decode(value).is_cut


def test_what_is_cut_keeps_its_beginning_and_its_group():
    letter = letter_for(LARGE["value"], RecordError("torn"))
    assert letter.value == b"v" * CUT_BYTES
    assert (letter.key, letter.headers) == (b"k", {"group_id": b"g"})
    assert summary(letter)["cut"] == f"{CUT_BYTES:,} of {ALMOST_ALL + 10:,} bytes"


def test_a_record_that_fits_is_kept_whole():
    message = Message(TOPIC, 0, 7, b"k", b"v" * (MAX_RECORD_BYTES - 1), 0)
    letter = letter_for(message, SchemaError("torn"))
    assert not letter.is_cut
    assert letter.value == message.value


def test_a_cut_record_is_written_again_whole_from_where_it_stood():
    log = MemoryLog({TOPIC: 2, NAMES.dead_letters: 1})
    whole = b"v" * ALMOST_ALL
    with log.writer("w").transaction() as txn:
        txn.write(TOPIC, b"k", b"before", partition=1)
        txn.write(TOPIC, b"k", whole, partition=1, headers=[("group_id", b"g")])
    message = log.records(TOPIC)[1]
    letter = letter_for(message, RecordError("torn"))
    write_again(RunLog(log, CODEC, NAMES), [letter])
    again = log.records(TOPIC)[-1]
    assert (again.partition, again.key, again.value) == (1, b"k", whole)
    assert again.headers == (("group_id", b"g"),)
    log.trim(Partition(TOPIC, 1), 2)
    with pytest.raises(
        AstraStreamError, match=r"trajectories.main\[1\]@1 must still be in the log"
    ):
        write_again(RunLog(log, CODEC, NAMES), [letter])
    assert log.records(TOPIC)[-1] == again
