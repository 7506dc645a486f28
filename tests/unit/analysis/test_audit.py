"""A small clean run, and what an audit says of each way to spoil it."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from astra_stream.algorithms.packing import pack_batch
from astra_stream.analysis.audit import DELIVERY_LIMIT, AuditReport, audit
from astra_stream.analysis.ledger import Ledger, read_ledger, reading_order
from astra_stream.clock import SystemClock
from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.records import (
    BatchSlice,
    ObjectEntry,
    Outcome,
    PolicyNeed,
    PolicyVersion,
    RolloutRequest,
    Sampling,
    Trajectory,
    WeightAnnouncement,
)
from astra_stream.testing.builders import make_group, make_prompt, make_trajectory

POLICY = "main"
STEPS = 3
GROUPS_PER_STEP = 2
NUM_GROUPS = STEPS * GROUPS_PER_STEP + 1
"""The last one is dropped."""
TOPICS = TopicNames("t")
CODEC = Codec(declared("schemas"))


def make_run(announce: Callable, decide: Callable, *, finished: bool = True) -> list:
    groups = [make_group(1, 0, group_id=f"g{i}", versions=[i // 2]) for i in range(NUM_GROUPS - 1)]
    dropped = make_group(1, 1, group_id=f"g{NUM_GROUPS - 1}")
    records = [request(group.group_id) for group in [*groups, dropped]]
    records += [t for group in [*groups, dropped] for t in group.trajectories]
    records.append(make_trajectory(group_id="held-out", purpose="evaluate"))
    records += [announce(0), decide("dropped", dropped.group_id, reason="drop_uniform")]
    for step in range(STEPS):
        batch = groups[GROUPS_PER_STEP * step :][:GROUPS_PER_STEP]
        records += pack_batch(
            batch, batch_id=f"{POLICY}/{step}", policy=POLICY, trains_version=step, row_tokens=16
        )
        records += [decide("trained", g.group_id, trained_version=step) for g in batch]
        records.append(replace(announce(step + 1), batch_id=f"{POLICY}/{step}"))
    return [*records, announce(STEPS, kind="final")] if finished else records


def request(group_id: str) -> RolloutRequest:
    return RolloutRequest(
        request_id=f"{group_id}/0/0",
        group_id=group_id,
        prompt=make_prompt(),
        policies=(PolicyNeed(policy=POLICY, min_version=PolicyVersion(0, 0)),),
        first_sample=0,
        num_samples=2,
        group_size=2,
        sampling=Sampling(),
    )


def audited(run: list, *, objects=None, retrained=()) -> AuditReport:
    ledger = Ledger(
        policy=POLICY, max_staleness=1, present=objects, retrained=dict(enumerate(retrained))
    )
    for number, record in enumerate(run):
        ledger.take(record, f"t[0]@{number}")
    return audit(ledger)


@pytest.fixture
def run(records: SimpleNamespace) -> list:
    return make_run(records.announce, records.decide)


def of(run: list, kind: type, number: int = 0):
    return [record for record in run if isinstance(record, kind)][number]


def changed(run: list, old: object, *new: object) -> list:
    place = next(i for i, record in enumerate(run) if record is old)
    return [*run[:place], *new, *run[place + 1 :]]


def test_a_clean_run_is_counted_and_breaks_no_rule(run):
    report = audited(run)
    assert report.violations == ()
    assert report.finished
    assert (report.groups, report.open_groups, report.samples) == (7, 0, 14)
    assert (report.outcomes, report.endings) == (7, {"dropped: drop_uniform": 1, "trained": 6})
    assert (report.batches, report.versions, report.evaluation_samples) == (3, 4, 1)
    assert (report.lost, report.duplicated, report.dead_letters) == (0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        (RolloutRequest, {"unknown"}),
        (Trajectory, {"lost", "batch"}),
        (Outcome, {"lost"}),
        (BatchSlice, {"batch", "version"}),
        (WeightAnnouncement, {"version"}),
    ],
)
def test_a_missing_record_is_found(run, kind, rules):
    assert {v.rule for v in audited(changed(run, of(run, kind))).violations} == rules


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        (RolloutRequest, {"duplicated"}),
        (Trajectory, {"duplicated"}),
        (Outcome, {"duplicated"}),
        (BatchSlice, {"batch"}),
        (WeightAnnouncement, {"version"}),
    ],
)
def test_a_record_that_stands_twice_is_found_at_its_coordinates(run, kind, rules):
    record = of(run, kind)
    found = audited([*changed(run, record, record, record)]).violations
    assert {v.rule for v in found} == rules
    assert all(v.where for v in found)


def test_a_group_that_is_trained_and_dropped_has_ended_twice(run, records):
    found = audited([*run, records.decide("dropped", "g0", reason="expired")])
    assert found.duplicated == 1
    assert [v.said for v in found.violations] == ["ended 2 times: trained, dropped"]


def test_a_fresh_sample_in_two_batches_is_found_and_a_replayed_one_is_not(run):
    batch = of(run, BatchSlice, 1)
    first = of(run, BatchSlice, 0).samples[0]
    for replay_use, num_duplicated in ((0, 1), (1, 0)):
        again = replace(first, replay_use=replay_use, staleness=1)
        spoilt = replace(batch, samples=(*batch.samples, again))
        assert audited(changed(run, batch, spoilt)).duplicated == num_duplicated


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"trajectory_id": "held-out/0/main"}, "is an evaluation's"),
        ({"trajectory_id": "nowhere"}, "is in batch 0 and not in the trajectories"),
        ({"staleness": 2}, "has staleness 2; the bound is 1"),
        ({"staleness": 1}, "is said to be of v-1 in batch 0; its trajectory says v0"),
    ],
)
def test_a_sample_that_may_not_be_trained_is_found(run, fields, said):
    batch = of(run, BatchSlice)
    spoilt = replace(batch, samples=(replace(batch.samples[0], **fields), *batch.samples[1:]))
    assert any(said in v.said for v in audited(changed(run, batch, spoilt)).violations)


def test_an_outcome_of_a_batch_that_does_not_hold_the_group_is_found(run):
    outcome = of(run, Outcome, 1)
    spoilt = changed(run, outcome, replace(outcome, trained_version=2))
    said = {v.said for v in audited(spoilt).violations}
    assert said == {
        "is in batch 0 and has no outcome of it",
        "has an outcome of batch 2 and is not in it",
    }


def test_a_sample_given_up_for_its_deliveries_is_a_violation(run):
    played = of(run, Trajectory)
    given_up = replace(played, error_kind=DELIVERY_LIMIT)
    assert [v.rule for v in audited(changed(run, played, given_up)).violations] == [
        "delivery_limit"
    ]


def test_a_lineage_opens_with_a_snapshot_of_the_same_number_and_in_no_other_way(records):
    for opened, is_clean in (
        (records.announce(1, lineage=1), True),
        (records.announce(2, lineage=1), False),
        (records.announce(1, lineage=2), False),
        (replace(records.announce(1, lineage=1), kind="delta"), False),
    ):
        run = [records.announce(0), records.announce(1), opened]
        assert (audited(run).violations == ()) == is_clean, opened.version


def test_a_delta_must_name_a_base_that_was_announced_with_its_hash(records):
    base, after = records.announce(0), records.announce(1)
    delta = {"kind": "delta", "base": base.version}
    assert audited([base, replace(after, **delta, base_hash=base.root_hash)]).violations == ()
    (found,) = audited([base, replace(after, **delta, base_hash="f" * 64)]).violations
    assert "which was not announced with that hash" in found.said


def test_a_final_version_with_other_weights_is_found(run):
    final = run[-1]
    (found,) = audited([*run[:-1], replace(final, root_hash="f" * 64)]).violations
    assert found.rule == "version"


def test_objects_must_be_there_whole_and_others_are_orphans(run):
    entry = ObjectEntry(key="w/a", size_bytes=5, sha256="0" * 64, raw_size_bytes=5)
    announced = of(run, WeightAnnouncement)
    run = changed(run, announced, replace(announced, objects=(entry,)))
    whole = audited(run, objects={"w/a": 5, "w/b": 1})
    assert (whole.violations, whole.orphans) == ((), ("w/b",))
    for objects in ({}, {"w/a": 4}):
        (found,) = audited(run, objects=objects).violations
        assert (found.rule, found.what) == ("object", "w/a")


def test_weights_that_training_again_does_not_make_are_found(run):
    hashes = [record.root_hash for record in run if isinstance(record, WeightAnnouncement)]
    assert audited(run, retrained=hashes[:4]).violations == ()
    (found,) = audited(run, retrained=[*hashes[:2], "f" * 64, hashes[3]]).violations
    assert (found.rule, found.what) == ("weights", "v2")


@pytest.mark.parametrize("length", range(NUM_GROUPS * 3 + 1, 43))
def test_a_run_that_goes_on_has_open_groups_and_none_lost(records, length):
    """Read effects first: every record that is read has its causes in what is read after it."""
    whole = make_run(records.announce, records.decide, finished=False)
    report = audited(whole[:length])
    assert report.violations == ()
    assert report.outcomes + report.open_groups == report.groups == NUM_GROUPS


def test_a_ledger_reads_the_topics_and_names_what_it_cannot_read(run):
    topics = {type(of(run, RolloutRequest)): TOPICS.requests()}
    topics |= {Trajectory: TOPICS.trajectories(POLICY), Outcome: TOPICS.outcomes}
    topics |= {BatchSlice: TOPICS.batches(POLICY), WeightAnnouncement: TOPICS.weights(POLICY)}
    log = MemoryLog(dict.fromkeys(reading_order(TOPICS, POLICY), 1))
    with log.writer("w").transaction() as txn:
        for record in run:
            txn.write(topics[type(record)], b"k", CODEC.encode(record))
        txn.write(TOPICS.outcomes, b"k", b"\x00torn")
    names = {"topics": TOPICS, "policy": POLICY, "max_staleness": 1}
    report = audit(read_ledger(log, CODEC, **names, clock=SystemClock()))
    assert [v.rule for v in report.violations] == ["unreadable"]
    assert report.violations[0].where.startswith(f"{TOPICS.outcomes}[0]@")
    assert report.outcomes == NUM_GROUPS
