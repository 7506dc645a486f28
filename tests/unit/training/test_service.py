"""The trainer against a log and a store in memory, killed after each of its effects."""

import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from astra_stream.algorithms.packing import pack_batch
from astra_stream.clock import FixedClock
from astra_stream.declarations import declared
from astra_stream.errors import FencedError, RecordError, TransientError
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.records import PolicyVersion
from astra_stream.store.memory import MemoryStore
from astra_stream.testing.builders import make_group
from astra_stream.training.checkpoints import CheckpointStore
from astra_stream.training.interface import ExportedWeights
from astra_stream.training.service import Trainer, TrainerSettings
from astra_stream.weights.publisher import SnapshotPublisher

CODEC = Codec(declared("schemas"))
TOPICS = TopicNames("t")
POLICY = "main"
MAX_STALENESS = 1


class Killed(BaseException):
    """Stands in for SIGKILL: nothing catches it."""


class NumpyBackend:
    """Weights that remember the batches they were trained on.

    Args:
        drift: Added at every step, as by other hardware.
    """

    def __init__(self, *, drift: float = 0.0) -> None:
        self._weights = np.zeros(4, np.float32)
        self._drift = drift

    def step(self, batch) -> dict[str, float]:
        total = np.float32(batch.tokens.sum() % 1000)
        self._weights = self._weights * np.float32(1.5) + total + np.float32(self._drift)
        return {"reward_mean": 0.5, "loss": float(total)}

    def export(self) -> ExportedWeights:
        return ExportedWeights(tensors={"w": self._weights.copy()}, dtypes={"w": "F32"})

    def save(self, directory) -> None:
        (directory / "state.json").write_text(json.dumps(self._weights.tolist()))

    def restore(self, directory) -> None:
        self._weights = np.array(json.loads((directory / "state.json").read_text()), np.float32)


class KilledStore(MemoryStore):
    """Dies at the nth write below a prefix, before or after it."""

    def __init__(self, prefix: str, nth: int, *, when: str) -> None:
        super().__init__()
        self._prefix, self._left, self._when = prefix, nth, when

    def put(self, key, data) -> None:
        dies = key.startswith(self._prefix) and self._dies()
        if dies and self._when == "before":
            raise Killed
        super().put(key, data)
        if dies:
            raise Killed

    def _dies(self) -> bool:
        self._left -= 1
        return self._left == 0


class KilledLog(MemoryLog):
    """Dies around the nth announcement: with its transaction open, or right after its commit."""

    def __init__(self, topics, nth: int, *, when: str) -> None:
        super().__init__(topics)
        self._left, self._when = nth, when

    def begin(self, writer):
        transaction = super().begin(writer)
        self._left -= 1
        if self._left == 0:
            commit = transaction.commit

            def die() -> None:
                if self._when == "after":
                    commit()
                raise Killed

            transaction.commit = die
        return transaction


def topics() -> dict[str, int]:
    return {
        TOPICS.batches(POLICY): 1,
        TOPICS.weights(POLICY): 1,
        TOPICS.outcomes: 2,
        TOPICS.metrics: 1,
    }


def write_batches(log, num_batches: int, *, last: bool = True, sampled_by=None, **packing) -> None:
    """Batches of two groups of two; batch k was sampled by version k unless told otherwise."""
    with log.writer("assembler").transaction() as txn:
        for number in range(num_batches):
            version = number if sampled_by is None else sampled_by
            groups = [
                make_group(1, 0, group_id=f"b{number}g{i}", versions=(version,)) for i in range(2)
            ]
            for piece in pack_batch(
                groups,
                batch_id=f"{POLICY}/{number}",
                policy=POLICY,
                trains_version=number,
                sample_columns={"advantages": np.zeros(4, np.float32)},
                last=last and number == num_batches - 1,
                **{"row_tokens": 32, **packing},
            ):
                txn.write(TOPICS.batches(POLICY), b"b", CODEC.encode(piece), partition=0)


def make_trainer(log, store, directory, *, drift=0.0, checkpoint_every=2) -> Trainer:
    return Trainer(
        log=log,
        codec=CODEC,
        backend=NumpyBackend(drift=drift),
        publisher=SnapshotPublisher(store, policy=POLICY, files={"config.json": b"{}"}),
        checkpoints=CheckpointStore(store, policy=POLICY, directory=directory),
        settings=TrainerSettings(
            policy=POLICY,
            batches_topic=TOPICS.batches(POLICY),
            weights_topic=TOPICS.weights(POLICY),
            outcomes_topic=TOPICS.outcomes,
            metrics_topic=TOPICS.metrics,
            group=TOPICS.group("trainer", POLICY),
            max_staleness=MAX_STALENESS,
            checkpoint_every=checkpoint_every,
        ),
        clock=FixedClock(),
        stop=threading.Event(),
    )


def announced(log) -> list:
    return [CODEC.decode(m.value) for m in log.records(TOPICS.weights(POLICY))]


def trained(log) -> list:
    return [CODEC.decode(m.value) for m in log.records(TOPICS.outcomes)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Root hashes of five versions made without a crash."""
    log = MemoryLog(topics())
    write_batches(log, 5)
    make_trainer(log, MemoryStore(), tmp_path_factory.mktemp("trainer")).run()
    return [a.root_hash for a in announced(log)[:-1]]


def assert_whole(log, hashes) -> None:
    """Every version was announced once, in order, and every group has one outcome."""
    found = announced(log)
    assert [(a.version, a.kind) for a in found[:-1]] == [
        (PolicyVersion(0, number), "snapshot") for number in range(6)
    ]
    assert [a.root_hash for a in found[:-1]] == hashes
    assert found[-1].kind == "final"
    groups = [outcome.group_id for outcome in trained(log)]
    assert sorted(groups) == sorted(f"b{number}g{i}" for number in range(5) for i in range(2))
    assert {outcome.event for outcome in trained(log)} == {"trained"}


def test_a_version_is_announced_for_every_batch_with_its_metrics_and_outcomes(
    tmp_path, undisturbed
):
    log = MemoryLog(topics())
    write_batches(log, 5)
    make_trainer(log, MemoryStore(), tmp_path).run()
    assert_whole(log, undisturbed)
    found = announced(log)
    assert len(set(undisturbed)) == 6
    assert [a.num_trained_samples for a in found[:-1]] == [0, 4, 8, 12, 16, 20]
    assert [bool(a.checkpoint) for a in found[:-1]] == [False, False, True, False, True, False]
    assert [a.batch_id for a in found[1:-1]] == [f"main/{number}" for number in range(5)]
    assert found[1].train_metrics["reward_mean"] == 0.5
    points = [CODEC.decode(m.value) for m in log.records(TOPICS.metrics)]
    assert {p.series for p in points} >= {"loss", "step_seconds", "publish_wait_seconds"}


def crash_points() -> Iterator[tuple[str, int, str]]:
    for when in ("before", "after"):
        yield from (("weights/main/0", nth, when) for nth in (1, 2, 5))
        yield from (("checkpoints/", nth, when) for nth in (1, 2, 3))
        yield from (("announcement", nth, when) for nth in (1, 2, 3, 5, 6, 7))


@pytest.mark.parametrize(("effect", "nth", "when"), list(crash_points()))
def test_a_trainer_killed_at_any_effect_leaves_one_of_each_version(
    tmp_path, undisturbed, effect, nth, when
):
    is_announcement = effect == "announcement"
    # The first transaction is the one that writes the batches.
    log = KilledLog(topics(), 1 + nth if is_announcement else 0, when=when)
    store = MemoryStore() if is_announcement else KilledStore(effect, nth, when=when)
    write_batches(log, 5)
    with pytest.raises(Killed):
        make_trainer(log, store, tmp_path / "first").run()
    make_trainer(log, store, tmp_path / "second").run()
    assert_whole(log, undisturbed)


def test_a_trainer_killed_without_any_checkpoint_trains_all_again(tmp_path, undisturbed):
    log = KilledLog(topics(), 5, when="after")
    store = MemoryStore()
    write_batches(log, 5)
    with pytest.raises(Killed):
        make_trainer(log, store, tmp_path / "first", checkpoint_every=50).run()
    make_trainer(log, store, tmp_path / "second", checkpoint_every=50).run()
    assert_whole(log, undisturbed)
    repeated = [a.train_metrics["repeated_batches"] for a in announced(log)[1:-1]]
    assert repeated == [0, 0, 0, 3, 0]


@pytest.mark.parametrize("checkpoint_every", [1, 5])
@pytest.mark.parametrize(("nth", "when"), [(7, "after"), (8, "before"), (8, "after")])
def test_a_trainer_killed_between_its_last_version_and_the_end_ends_the_run(
    tmp_path, undisturbed, checkpoint_every, nth, when
):
    # Transactions: the batches, six announcements, the end.
    log = KilledLog(topics(), nth, when=when)
    store = MemoryStore()
    write_batches(log, 5)
    with pytest.raises(Killed):
        make_trainer(log, store, tmp_path / "first", checkpoint_every=checkpoint_every).run()
    make_trainer(log, store, tmp_path / "second", checkpoint_every=checkpoint_every).run()
    assert_whole(log, undisturbed)


def test_a_trainer_that_makes_other_weights_opens_a_lineage_and_goes_on(tmp_path):
    log = KilledLog(topics(), 5, when="after")
    store = MemoryStore()
    write_batches(log, 5)
    with pytest.raises(Killed):
        make_trainer(log, store, tmp_path / "first").run()
    before = announced(log)
    assert [a.version for a in before] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    make_trainer(log, store, tmp_path / "second", drift=1.0).run()
    after = announced(log)[len(before) :]
    assert [a.version for a in after] == [(1, 3), (1, 4), (1, 5), (1, 5)]
    assert after[0].root_hash != before[-1].root_hash
    assert after[0].num_trained_samples == before[-1].num_trained_samples
    groups = [outcome.group_id for outcome in trained(log)]
    assert len(groups) == len(set(groups)) == 10


def test_a_finished_trainer_started_again_writes_nothing(tmp_path):
    log, store = MemoryLog(topics()), MemoryStore()
    write_batches(log, 2)
    make_trainer(log, store, tmp_path / "first").run()
    before = announced(log)
    make_trainer(log, store, tmp_path / "second").run()
    assert len(announced(log)) == len(before)


def test_an_older_trainer_is_fenced_by_a_newer_one(tmp_path):
    log, store = MemoryLog(topics()), MemoryStore()
    write_batches(log, 3)

    class Overtaken(MemoryStore):
        def put(self, key, data) -> None:
            super().put(key, data)
            if "00000002" in key:
                log.writer(TOPICS.group("trainer", POLICY))

    with pytest.raises(FencedError):
        make_trainer(log, Overtaken(), tmp_path / "first").run()
    assert [a.version.number for a in announced(log)] == [0, 1]
    make_trainer(log, store, tmp_path / "second").run()
    assert [a.version.number for a in announced(log)] == [0, 1, 2, 3, 3]


def test_a_store_that_fails_ends_the_trainer_before_anything_is_announced(tmp_path):
    class Away(MemoryStore):
        def put(self, *_) -> None:
            raise TransientError("store must answer: got nothing. Try again.")

    log = MemoryLog(topics())
    write_batches(log, 1)
    with pytest.raises(TransientError, match="store must answer"):
        make_trainer(log, Away(), tmp_path).run()
    assert announced(log) == []


def test_a_batch_that_is_too_stale_is_the_assemblers_bug(tmp_path):
    log = MemoryLog(topics())
    write_batches(log, 3, sampled_by=0)
    with pytest.raises(RecordError, match="staleness of 'b2g0/0/main' must be 0 to 1: got 2"):
        make_trainer(log, MemoryStore(), tmp_path).run()


def test_an_empty_last_batch_ends_the_run_at_the_version_before(tmp_path):
    log = MemoryLog(topics())
    write_batches(log, 2, last=False)
    (empty,) = pack_batch(
        [],
        batch_id="main/2",
        policy=POLICY,
        trains_version=2,
        row_tokens=32,
        sample_columns={},
        last=True,
    )
    with log.writer("assembler").transaction() as txn:
        txn.write(TOPICS.batches(POLICY), b"b", CODEC.encode(empty), partition=0)
    make_trainer(log, MemoryStore(), tmp_path).run()
    assert [(a.version.number, a.kind) for a in announced(log)] == [
        (0, "snapshot"),
        (1, "snapshot"),
        (2, "snapshot"),
        (2, "final"),
    ]


def test_a_batch_of_several_slices_is_one_step_and_the_position_lies_after_it(tmp_path):
    log = MemoryLog(topics())
    write_batches(log, 2, row_tokens=8, max_slice_bytes=400)
    records = log.records(TOPICS.batches(POLICY))
    assert len(records) > 2
    make_trainer(log, MemoryStore(), tmp_path).run()
    assert [a.version.number for a in announced(log)] == [0, 1, 2, 2]
    reader = log.assign([TOPICS.batches(POLICY)], group=TOPICS.group("trainer", POLICY))
    (position,) = reader.committed(reader.assignment()).values()
    assert position.offset == records[-1].offset + 1
