"""Trainer and worker while the store fails, and what dead trainers leave in it."""

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from astra_stream.algorithms.packing import pack_batch
from astra_stream.analysis.orphans import PENDING, UNPLACED, read_orphans
from astra_stream.clock import FixedClock, SystemClock
from astra_stream.declarations import declared
from astra_stream.errors import TransientError, WeightsError
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.records import PolicyVersion
from astra_stream.rollout.news import News
from astra_stream.store.memory import MemoryStore
from astra_stream.store.s3 import S3Store
from astra_stream.store.tries import SAID_AFTER_S
from astra_stream.testing.builders import make_group
from astra_stream.testing.fault_proxy import Fault, FaultProxy
from astra_stream.training.checkpoints import CheckpointStore, checkpoint_objects
from astra_stream.training.interface import ExportedWeights
from astra_stream.training.service import Trainer, TrainerSettings
from astra_stream.weights.follower import SnapshotFollower
from astra_stream.weights.publisher import SnapshotPublisher

pytestmark = [pytest.mark.slow]

CODEC = Codec(declared("schemas"))
TOPICS = TopicNames("t")
POLICY = "main"
WEIGHTS = TOPICS.weights(POLICY)
NUM_BATCHES = 4
OUTAGE_S = SAID_AFTER_S + 1.0
DOWN = Fault(status=503, code="ServiceUnavailable")


class Killed(BaseException):
    """Stands in for SIGKILL: nothing catches it."""


class Sums:
    """Weights that remember the batches they were trained on; ``drift`` stands for other chips."""

    def __init__(self, *, drift: float = 0.0) -> None:
        self._weights = np.zeros(4, np.float32)
        self._drift = np.float32(drift)

    def step(self, batch) -> dict[str, float]:
        total = np.float32(batch.tokens.sum() % 1000)
        self._weights = self._weights * np.float32(1.5) + total + self._drift
        return {"loss": float(total)}

    def export(self) -> ExportedWeights:
        return ExportedWeights(tensors={"w": self._weights.copy()}, dtypes={"w": "F32"})

    def save(self, directory) -> None:
        (directory / "state.json").write_text(json.dumps(self._weights.tolist()))

    def restore(self, directory) -> None:
        self._weights = np.array(json.loads((directory / "state.json").read_text()), np.float32)


class Played:
    """An engine that notes which versions it was given."""

    def __init__(self) -> None:
        self.version: PolicyVersion | None = None

    async def load(self, update) -> None:
        self.version = update.version


def make_log(kind: type[MemoryLog] = MemoryLog, **options) -> MemoryLog:
    log = kind(
        {TOPICS.batches(POLICY): 1, WEIGHTS: 1, TOPICS.outcomes: 2, TOPICS.metrics: 1}, **options
    )
    with log.writer("assembler").transaction() as txn:
        for number in range(NUM_BATCHES):
            for piece in pack_batch(
                [make_group(1, 0, group_id=f"g{number}", versions=(number,))],
                batch_id=f"{POLICY}/{number}",
                policy=POLICY,
                trains_version=number,
                sample_columns={"advantages": np.zeros(2, np.float32)},
                last=number == NUM_BATCHES - 1,
                row_tokens=32,
            ):
                txn.write(TOPICS.batches(POLICY), b"b", CODEC.encode(piece), partition=0)
    return log


def train(log, store, directory: Path, *, drift: float = 0.0) -> None:
    Trainer(
        log=log,
        codec=CODEC,
        backend=Sums(drift=drift),
        publisher=SnapshotPublisher(store, policy=POLICY, files={"config.json": b"{}"}),
        checkpoints=CheckpointStore(store, policy=POLICY, directory=directory),
        settings=TrainerSettings(
            policy=POLICY,
            batches_topic=TOPICS.batches(POLICY),
            weights_topic=WEIGHTS,
            outcomes_topic=TOPICS.outcomes,
            metrics_topic=TOPICS.metrics,
            group=TOPICS.group("trainer", POLICY),
            max_staleness=1,
            checkpoint_every=2,
        ),
        clock=FixedClock(),
        stop=threading.Event(),
    ).run()


def follow(log, store, directory: Path) -> PolicyVersion | None:
    """Do as a worker does with weights until the run is over; the version it holds then."""

    async def until_over() -> PolicyVersion | None:
        follower = SnapshotFollower(store, directory, POLICY)
        news = News(log, CODEC, follower, weights_topic=WEIGHTS, closes_on_topic=WEIGHTS)
        engine, over = Played(), asyncio.Event()
        first = await news.first(threading.Event())
        await engine.load(first[2])

        async def changed() -> None:
            if news.is_over:
                over.set()

        following = asyncio.create_task(news.follow(engine, changed))
        ended = asyncio.create_task(over.wait())
        await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            await following
        following.cancel()
        await news.close()
        return engine.version

    return asyncio.run(until_over())


def announced(log) -> list:
    return [CODEC.decode(message.value) for message in log.records(WEIGHTS)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[PolicyVersion, str]]:
    """Versions and root hashes of a trainer whose store never fails."""
    log = make_log()
    train(log, MemoryStore(), tmp_path_factory.mktemp("undisturbed"))
    return versions(log)


def versions(log) -> list[tuple[PolicyVersion, str]]:
    return [(one.version, one.root_hash) for one in announced(log)]


@pytest.fixture
def proxies(s3_store_settings: dict[str, str]) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    """One before the trainer, one before the worker."""
    endpoint = s3_store_settings["endpoint"]
    with FaultProxy(endpoint) as trainers, FaultProxy(endpoint) as workers:
        yield trainers, workers


@pytest.fixture
def open_store(s3_store_settings: dict[str, str]) -> Callable[..., S3Store]:
    prefix = f"flow-{uuid.uuid4()}"

    def open_at(proxy: FaultProxy, *, deadline_s: float) -> S3Store:
        return S3Store(
            f"s3://{s3_store_settings['bucket']}/{prefix}",
            endpoint=proxy.endpoint,
            access_key=s3_store_settings["access_key"],
            secret_key=s3_store_settings["secret_key"],
            deadline_s=deadline_s,
        )

    return open_at


@pytest.fixture
def said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """What the store's callers said; another test may have sent the package's lines elsewhere."""
    logger = logging.getLogger("astra_stream.store.tries")
    logger.addHandler(caplog.handler)
    monkeypatch.setattr(logger, "propagate", False)
    caplog.set_level(logging.INFO, logger.name)
    yield caplog
    logger.removeHandler(caplog.handler)


def test_trainer_and_worker_wait_out_an_outage_say_so_and_make_the_same_versions(
    proxies, open_store, undisturbed, said, tmp_path
):
    trainers, workers = proxies
    trainers.fail(DOWN, method="PUT", part="/00000002/", times=-1)
    workers.fail(DOWN, method="GET", part="/00000001/", times=-1)
    log = make_log()
    with (
        closing(open_store(trainers, deadline_s=60.0)) as trainers_store,
        closing(open_store(workers, deadline_s=60.0)) as workers_store,
        ThreadPoolExecutor(2) as pool,
    ):
        following = pool.submit(follow, log, workers_store, tmp_path / "worker")
        training = pool.submit(train, log, trainers_store, tmp_path / "trainer")
        assert trainers.struck.wait(60.0)
        assert workers.struck.wait(60.0)
        threading.Event().wait(OUTAGE_S)
        assert not training.done()
        assert not following.done()
        trainers.heal()
        workers.heal()
        training.result(60.0)
        assert following.result(60.0) == PolicyVersion(0, NUM_BATCHES)
    assert versions(log) == undisturbed
    lines = sorted({(r.levelname, r.getMessage(), r.store, r.asked) for r in said.records})
    assert len(lines) == len(said.records) == 4
    assert {line[:2] for line in lines} == {
        ("WARNING", "waiting for the store"),
        ("INFO", "the store answers again"),
    }


def test_an_outage_beyond_the_deadline_ends_a_trainer_whose_successor_goes_on(
    proxies, open_store, undisturbed, tmp_path
):
    proxy, _ = proxies
    proxy.fail(DOWN, part="/00000002/", times=-1)
    log = make_log()
    with (
        closing(open_store(proxy, deadline_s=0.5)) as hasty,
        pytest.raises(TransientError, match=f"at {proxy.endpoint} must answer within") as raised,
    ):
        train(log, hasty, tmp_path / "first")
    assert raised.value.exit_code == 75
    assert versions(log) == undisturbed[:2]
    proxy.heal()
    with closing(open_store(proxy, deadline_s=60.0)) as store:
        train(log, store, tmp_path / "second")
        assert versions(log) == undisturbed
        assert sweep(log, store, delete=True) == {}


class KilledLog(MemoryLog):
    """Dies at its nth transaction, before it commits."""

    def __init__(self, topics, *, nth: int) -> None:
        super().__init__(topics)
        self._left = nth

    def begin(self, writer):
        transaction = super().begin(writer)
        self._left -= 1
        if self._left == 0:
            transaction.commit = self._die
        return transaction

    def _die(self) -> None:
        raise Killed


def sweep(log, store, *, delete: bool) -> dict[str, str]:
    """Orphans by key, each with why it stays; deletes those that may go, of any age."""
    found = read_orphans(
        log, CODEC, store, topic=WEIGHTS, policy=POLICY, grace_s=0.0, clock=SystemClock()
    )
    for one in found:
        if delete and not one.kept:
            store.delete(one.key)
    return {one.key: one.kept for one in found}


@pytest.mark.parametrize("drift", [0.0, 1.0], ids=["equal", "other"])
@pytest.mark.parametrize("delete", [False, True], ids=["unswept", "swept"])
def test_what_a_killed_trainer_leaves_is_announced_or_swept_and_never_missing(
    tmp_path, drift, delete
):
    # The batches, versions 0 and 1, and the death with version 2 and its checkpoint uploaded.
    log, store = make_log(KilledLog, nth=4), MemoryStore()
    with pytest.raises(Killed):
        train(log, store, tmp_path / "first")
    left = sweep(log, store, delete=delete)
    assert {key.rpartition("/")[0] for key in left} == {
        "checkpoints/main/0/00000002",
        "weights/main/0/00000002",
    }
    assert set(left.values()) == {PENDING}
    train(log, store, tmp_path / "second", drift=drift)
    assert announced(log)[-1].kind == "final"
    swept = sweep(log, store, delete=True)
    assert set(swept.values()) <= {""}
    assert bool(swept) == bool(drift)
    assert sweep(log, store, delete=False) == {}
    for one in announced(log):
        for entry in one.objects:
            assert len(store.get(entry.key, max_bytes=entry.size_bytes)) == entry.size_bytes
        if one.checkpoint:
            for key in checkpoint_objects(store, one.checkpoint):
                store.get(key, max_bytes=1 << 20)


def test_a_trainer_killed_before_its_first_version_leaves_nothing_that_may_go(tmp_path):
    log, store = make_log(KilledLog, nth=2), MemoryStore()
    with pytest.raises(Killed):
        train(log, store, tmp_path / "first")
    left = sweep(log, store, delete=True)
    assert sorted(left.values()) == sorted([PENDING, UNPLACED])
    train(log, store, tmp_path / "second")
    assert sweep(log, store, delete=True) == {}


def test_a_sweep_that_cannot_know_what_a_checkpoint_names_deletes_nothing(tmp_path):
    log, store = make_log(), MemoryStore()
    train(log, store, tmp_path)
    store.put("weights/main/0/00000001/model-0123.safetensors", b"old")
    index = next(one.checkpoint for one in announced(log) if one.checkpoint)
    store.delete(index)
    before = list(store.list(""))
    with pytest.raises(WeightsError, match=f"{index} must have sha256 .*: got no object"):
        sweep(log, store, delete=True)
    assert list(store.list("")) == before
