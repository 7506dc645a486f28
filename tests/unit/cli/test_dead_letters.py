"""Which dead letters may be written again, and as what."""

import pytest

from astra_stream.cli.dead_letters import RunLog, readable, replayable, write_again
from astra_stream.declarations import declared
from astra_stream.errors import ConfigError, RecordError
from astra_stream.log.codec import Codec
from astra_stream.log.dead_letters import make_dead_letter
from astra_stream.log.interface import Message
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.log.processor import GROUP_HEADER
from astra_stream.records import Outcome
from astra_stream.testing.builders import make_prompt

CODEC = Codec(declared("schemas"))
NAMES = TopicNames("t")
TOPIC = NAMES.trajectories("main")


@pytest.fixture
def run() -> RunLog:
    log = MemoryLog({TOPIC: 2, NAMES.dead_letters: 1, NAMES.outcomes: 1})
    with log.writer("w").transaction() as txn:
        for offset, group_id in enumerate(("open", "dropped", "completed")):
            header = ((GROUP_HEADER, group_id.encode()),)
            message = Message(TOPIC, 1, offset, b"k", b"torn", 0, header)
            letter = make_dead_letter(
                message, RecordError("torn"), service="s", stage="s", now_s=0.0
            )
            txn.write(NAMES.dead_letters, b"k", CODEC.encode(letter))
        for event in ("dropped", "completed"):
            outcome = Outcome(
                group_id=event, prompt_id="p", policy="main", event=event, stage="pipeline"
            )
            txn.write(NAMES.outcomes, b"k", CODEC.encode(outcome))
    return RunLog(log, CODEC, NAMES)


def test_records_are_found_by_where_they_stood(run):
    assert run.letter(f"{TOPIC}[1]@2").value == b"torn"
    with pytest.raises(ConfigError, match=r"nowhere\[0\]@0 must be the coordinates of a dead"):
        run.letter("nowhere[0]@0")


def test_a_record_of_a_group_that_has_ended_is_left_out(run):
    again = replayable(run, run.letters())
    assert sorted(again) == [f"{TOPIC}[1]@0", f"{TOPIC}[1]@2"]


def test_a_record_is_written_again_as_it_stood(run):
    write_again(run, [run.letter(f"{TOPIC}[1]@0")])
    (written,) = run.log.records(TOPIC)
    assert (written.partition, written.key, written.value) == (1, b"k", b"torn")
    assert written.headers == ((GROUP_HEADER, b"open"),)


def test_a_record_that_decodes_is_shown_and_of_another_the_first_bytes(run):
    torn = run.letter(f"{TOPIC}[1]@0")
    assert readable(torn, CODEC)["first bytes"] == b"torn".hex(" ")
    message = Message(TOPIC, 0, 0, None, CODEC.encode(make_prompt("1+2=")), 0)
    whole = make_dead_letter(message, ValueError("x"), service="s", stage="s", now_s=0.0)
    assert "1+2=" in readable(whole, CODEC)["content"]
