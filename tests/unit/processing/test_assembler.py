"""What the assembler makes of records that do not decode."""

from astra_stream.algorithms.advantage import group_relative
from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.processing.assembler import Assembler, AssemblerSettings
from astra_stream.records import Outcome
from astra_stream.testing.driver import Driver, incoming, torn

CODEC = Codec(declared("schemas"))


def make_assembler() -> Assembler:
    return Assembler(
        AssemblerSettings(
            policy="main", groups_per_batch=2, max_staleness=0, row_tokens=16, max_drops=1000
        ),
        advantage=group_relative,
        codec=CODEC,
        requests_topic="requests",
        batches_topic="batches",
        outcomes_topic="outcomes",
    )


def outcome(event: str, group_id: str = "", **fields):
    return incoming(
        Outcome(group_id=group_id, prompt_id="", policy="main", event=event, stage="s", **fields)
    )


def test_a_torn_request_is_counted_so_that_the_run_still_ends():
    assembler = Driver(make_assembler)
    assembler.turn([torn(group_id="torn", topic="requests"), outcome("closed", num_issued=1)])
    assert not assembler.is_finished
    (write,) = assembler.turn([outcome("dropped", "torn")])
    assert write.record.last
    assert assembler.is_finished
    assert assembler.kept.keys() == {"cursor"}


def test_a_torn_request_of_an_evaluation_is_none_of_its_business():
    assembler = Driver(make_assembler)
    assert assembler.turn([torn(key=b"evaluation/0/p/0/0", topic="requests")]) == []
    assert assembler.kept == {}
