"""Who wrote when, how long a struck process took, and what was done twice."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from astra_stream.algorithms.packing import pack_batch
from astra_stream.analysis.recovery import read_work, times_to_work
from astra_stream.clock import SystemClock
from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.records import PolicyNeed, PolicyVersion, RolloutRequest, Sampling
from astra_stream.testing.builders import make_group, make_prompt, make_trajectory

TOPICS = TopicNames("t")
CODEC = Codec(declared("schemas"))


def request(purpose: str) -> RolloutRequest:
    return RolloutRequest(
        request_id="g/0/0",
        group_id="g",
        prompt=make_prompt(),
        policies=(PolicyNeed(policy="main", min_version=PolicyVersion(0, 0)),),
        first_sample=0,
        num_samples=2,
        group_size=2,
        sampling=Sampling(temperature=1.0, max_new_tokens=4),
        issued_at_s=0.0,
        purpose=purpose,
    )


def test_each_record_is_the_work_of_who_writes_it(records):
    group = make_group(1, 0, group_id="g")
    slices = pack_batch([group], batch_id="main/0", policy="main", trains_version=0, row_tokens=16)
    played = replace(make_trajectory(), worker="host/1", attempt=2)
    written = {
        TOPICS.requests(): [request("train"), request("evaluate"), request("train")],
        TOPICS.trajectories("main"): [played, replace(played, worker="host/0", attempt=1)],
        TOPICS.evaluation_trajectories("main"): [replace(played, attempt=0)],
        TOPICS.groups("main"): [group],
        TOPICS.batches("main"): slices,
        TOPICS.weights("main"): [
            records.announce(0),
            records.announce(1, {"repeated_batches": 4.0}),
        ],
    }
    log = MemoryLog(dict.fromkeys(written, 1))
    with log.writer("w").transaction() as txn:
        for topic, found in written.items():
            for record in found:
                txn.write(topic, b"k", CODEC.encode(record))
        txn.write(TOPICS.requests(), b"k", b"torn")
    work = read_work(log, CODEC, topics=TOPICS, policy="main", clock=SystemClock())
    assert {name: len(times) for name, times in work.times_s.items()} == {
        "scheduler": 2,
        "evaluator": 1,
        "rollout-0": 1,
        "rollout-1": 2,
        "pipeline": 1,
        "assembler": len(slices),
        "train": 2,
    }
    assert (work.num_played, work.num_played_again) == (3, 3)
    assert (work.num_trained, work.num_trained_again) == (1, 4)


def test_a_server_is_back_when_others_can_work():
    times_s = {"train": [5.0, 20.0], "scheduler": [1.0, 11.0]}
    strikes = [(10.0, "kafka"), (10.0, "store"), (10.0, "scheduler"), (12.0, "scheduler")]
    assert times_to_work(strikes, times_s) == {"kafka": [1.0], "store": [10.0], "scheduler": [1.0]}


@given(
    times_s=st.lists(st.floats(0, 100), min_size=1).map(sorted),
    strikes_s=st.lists(st.floats(0, 100)),
)
def test_the_work_that_ends_a_recovery_is_the_first_one_after_the_strike(times_s, strikes_s):
    found = times_to_work([(at_s, "train") for at_s in strikes_s], {"train": times_s})
    wanted = [min(t for t in times_s if t > at) - at for at in strikes_s if at < times_s[-1]]
    assert found.get("train", []) == wanted
