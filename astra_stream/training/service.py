"""The trainer: takes a batch, steps, publishes, announces.

Consumes batches; produces announcements, trained outcomes and metrics. Waits for a batch, and for
the version before the last to be announced: step k + 1 runs while k is uploaded and announced.
Effects of a version, in order, and what a crash after each leaves:

1. The step changes weights in memory: nothing is left; the batch is trained again.
2. The snapshot, and at times a checkpoint, is uploaded: an orphan object under a key that ends in
   its hash. The batch is trained again; equal bytes make the same key, which is success.
3. One transaction writes the announcement, the trained outcomes, the metrics and the position: a
   crash after it leaves a version that stands; the next trainer restores the newest checkpoint and
   trains the batches after it again, and compares each hash with what was announced. Equal: it goes
   on in the same lineage and announces nothing twice. Different: it opens a new lineage.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from astra_stream.algorithms.packing import Batch, join_slices
from astra_stream.clock import Clock
from astra_stream.errors import AstraStreamError, WeightsError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Committed, Log, Partition, Transaction
from astra_stream.log.reading import read_to_end
from astra_stream.records import BatchSlice, MetricPoint, PolicyVersion, WeightAnnouncement
from astra_stream.training.batches import require_next, require_trainable, trained_outcomes
from astra_stream.training.checkpoints import CheckpointFiles, CheckpointStore
from astra_stream.training.interface import Backend, ExportedWeights
from astra_stream.training.retraining import hash_of
from astra_stream.weights.interface import Publisher

logger = logging.getLogger(__name__)

POLL_S = 0.5
REPEATED_BATCHES = "repeated_batches"
"""Metric: batches that were trained again, after a start, before this version was."""


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """What the run file says of a trainer."""

    policy: str
    batches_topic: str
    weights_topic: str
    outcomes_topic: str
    metrics_topic: str
    group: str
    """Consumer group, and transactional id."""
    max_staleness: int
    checkpoint_every: int = 50
    """Versions from one checkpoint to the next; bounds what a restart repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch:
    """A batch, and where reading goes on after it."""

    batch: Batch
    next_offset: int
    waited_s: float
    """Seconds from asking for it to its last slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a trainer stands after a version."""

    version: PolicyVersion
    num_samples: int = 0
    """Samples trained up to and including it."""
    num_tokens: int = 0
    """Trained tokens up to and including it."""
    is_last: bool = False
    """Whether the run's last batch made it."""

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """What ``asdict`` made, after a journey through JSON."""
        return cls(
            version=PolicyVersion(*facts["version"]),
            num_samples=facts["num_samples"],
            num_tokens=facts["num_tokens"],
            is_last=facts["is_last"],
        )

    def after(self, batch: Batch) -> Self:
        """Where it stands once ``batch`` is trained."""
        return replace(
            self,
            version=self.version.next(),
            num_samples=self.num_samples + len(batch.samples),
            num_tokens=self.num_tokens + batch.trained_tokens,
            is_last=batch.last,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is to be published and announced of one version."""

    standing: Standing
    read: ReadBatch | None
    """The batch that made it; None for version 0."""
    weights: ExportedWeights
    metrics: Mapping[str, float]
    checkpoint: CheckpointFiles | None


class Trainer:
    """Trains until the last batch or until ``stop`` is set."""

    def __init__(
        self,
        *,
        log: Log,
        codec: Codec,
        backend: Backend,
        publisher: Publisher,
        checkpoints: CheckpointStore,
        settings: TrainerSettings,
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        self._log = log
        self._codec = codec
        self._backend = backend
        self._publisher = publisher
        self._checkpoints = checkpoints
        self._settings = settings
        self._clock = clock
        self._stop = stop
        self._publishing: Future[None] | None = None
        self._newest: WeightAnnouncement
        self._is_over = False
        self._num_repeated = 0
        """Batches that were trained again and are not told of yet."""

    def run(self) -> None:
        """Train, publish, announce.

        Raises:
            FencedError: A newer trainer of this policy runs.
            TransientError: The log or the store cannot be reached.
            RecordError: A batch breaks the rule of staleness: a bug of who assembled it.
            AstraStreamError: The log has lost what was announced, or the batches of it.
        """
        settings = self._settings
        self._batches_place = Partition(settings.batches_topic, 0)
        self._writer = self._log.writer(settings.group)
        self._reader = self._log.assign([settings.batches_topic], group=settings.group)
        with ThreadPoolExecutor(1, thread_name_prefix="publish") as thread:
            try:
                standing = self._recover()
                if not self._is_over:
                    self._train_all(standing, thread)
            finally:
                thread.shutdown()
                self._reader.close()
                self._writer.close()

    # -- reading ---------------------------------------------------------------------------------

    def _batches(self, end: int | None = None) -> Iterator[ReadBatch]:
        """Whole batches in order, up to an offset or for ever; an incomplete tail stays unread."""
        asked_s, place = self._clock.monotonic_s(), self._batches_place
        slices: list[BatchSlice] = []
        while not self._stop.is_set():
            messages = self._reader.poll(POLL_S, max_messages=1)
            if not messages and end is not None and self._reader.positions([place])[place] >= end:
                return
            for message in messages:
                slices.append(self._codec.read(BatchSlice, message))
                if len(slices) == slices[0].count:
                    read = ReadBatch(
                        batch=join_slices(slices),
                        next_offset=message.offset + 1,
                        waited_s=self._clock.monotonic_s() - asked_s,
                    )
                    slices = []
                    yield read
                    asked_s = self._clock.monotonic_s()

    # -- training --------------------------------------------------------------------------------

    def _train_all(self, standing: Standing, thread: ThreadPoolExecutor) -> None:
        """Train until the last batch; a predecessor may have trained it and not said so."""
        if standing.is_last:
            self._announce_final(standing, None)
            return
        for read in self._batches():
            standing = self._train(read, standing, thread)
            if read.batch.last:
                break
        self._wait_for_publishing()

    def _train(self, read: ReadBatch, standing: Standing, thread: ThreadPoolExecutor) -> Standing:
        """Step on a batch and start to publish the version that it makes."""
        batch = read.batch
        if not batch.samples:
            self._wait_for_publishing()
            self._announce_final(standing, read)
            return standing
        require_trainable(batch, standing.version, max_staleness=self._settings.max_staleness)
        began_s = self._clock.monotonic_s()
        metrics = self._backend.step(batch)
        stepped_s = self._clock.monotonic_s()
        weights = self._backend.export()
        after = standing.after(batch)
        checkpoint = self._checkpoint(after, read)
        exported_s = self._clock.monotonic_s()
        self._wait_for_publishing()
        ready_s = self._clock.monotonic_s()
        times = {
            "batch_wait_seconds": read.waited_s,
            "step_seconds": stepped_s - began_s,
            "export_seconds": exported_s - stepped_s,
            "publish_wait_seconds": ready_s - exported_s,
            REPEATED_BATCHES: float(self._num_repeated),
        }
        self._num_repeated = 0
        trained = Trained(
            standing=after,
            read=read,
            weights=weights,
            metrics={**metrics, **times},
            checkpoint=checkpoint,
        )
        self._publishing = thread.submit(self._publish, trained)
        if batch.last:
            self._wait_for_publishing()
            self._announce_final(after, read)
        return after

    def _checkpoint(self, after: Standing, read: ReadBatch) -> CheckpointFiles | None:
        if after.version.number % self._settings.checkpoint_every:
            return None
        return self._checkpoints.write(
            self._backend, standing=asdict(after), next_offset=read.next_offset
        )

    def _wait_for_publishing(self) -> None:
        """Wait until the version before is announced; its failure is this trainer's."""
        if self._publishing is not None:
            self._publishing.result()
            self._publishing = None

    # -- publishing, on its own thread -------------------------------------------------------------

    def _publish(self, trained: Trained) -> None:
        announcement = self._upload(trained)
        read, settings = trained.read, self._settings
        with self._writer.transaction() as txn:
            txn.write(
                settings.weights_topic, settings.policy.encode(), self._codec.encode(announcement)
            )
            if read is not None:
                self._write_trained(txn, trained, read)
        self._newest = announcement

    def _write_trained(self, txn: Transaction, trained: Trained, read: ReadBatch) -> None:
        now_s = self._clock.now_s()
        for outcome in trained_outcomes(read.batch, at_s=now_s):
            key = outcome.prompt_id.encode()
            txn.write(self._settings.outcomes_topic, key, self._codec.encode(outcome))
        for point in self._points(trained, now_s):
            value = self._codec.encode(point)
            txn.write(self._settings.metrics_topic, point.series.encode(), value)
        txn.commit_offsets(self._reader, self._after(read))

    def _upload(self, trained: Trained) -> WeightAnnouncement:
        checkpoint = trained.checkpoint
        return self._publisher.publish(
            trained.weights.tensors,
            trained.weights.dtypes,
            version=trained.standing.version,
            train_metrics=trained.metrics,
            num_trained_samples=trained.standing.num_samples,
            num_trained_tokens=trained.standing.num_tokens,
            batch_id=trained.read.batch.batch_id if trained.read else "",
            checkpoint=self._checkpoints.upload(checkpoint) if checkpoint else "",
        )

    def _points(self, trained: Trained, now_s: float) -> Iterator[MetricPoint]:
        for series, value in sorted(trained.metrics.items()):
            yield MetricPoint(
                series=series,
                value=float(value),
                step=trained.standing.version.number,
                policy=self._settings.policy,
                service="trainer",
                at_s=now_s,
            )

    def _after(self, read: ReadBatch) -> dict[Partition, Committed]:
        return {self._batches_place: Committed(read.next_offset)}

    def _announce_final(self, standing: Standing, read: ReadBatch | None) -> None:
        """Say that the last version stands and that there will be no other."""
        final = replace(self._newest, kind="final", objects=(), train_metrics={}, num_bytes=0)
        with self._writer.transaction() as txn:
            key = self._settings.policy.encode()
            txn.write(self._settings.weights_topic, key, self._codec.encode(final))
            if read is not None:
                txn.commit_offsets(self._reader, self._after(read))
        logger.info("finished", extra={"version": str(standing.version)})

    # -- recovery --------------------------------------------------------------------------------

    def _recover(self) -> Standing:
        """Stand where the log says that this policy's trainer stood."""
        announced = [
            self._codec.read(WeightAnnouncement, message)
            for message in read_to_end(self._log, self._settings.weights_topic, clock=self._clock)
        ]
        self._is_over = any(a.kind == "final" for a in announced)
        versions = {a.version.number: a for a in announced if a.kind != "final"}
        if not versions:
            self._require_unbegun()
            standing = Standing(version=PolicyVersion(0, 0))
            self._publish_alone(standing)
            return standing
        self._newest = versions[max(versions)]
        return self._repeat_training(versions)

    def _repeat_training(self, announced: Mapping[int, WeightAnnouncement]) -> Standing:
        """Restore the newest checkpoint, train the batches after it again, compare hashes."""
        standing = self._restore(announced)
        if standing.version.number < self._newest.version.number:
            end = self._reader.end_offsets([self._batches_place])[self._batches_place]
            for read in self._batches(end):
                require_next(read.batch, standing.version)
                self._backend.step(read.batch)
                standing = standing.after(read.batch)
                self._num_repeated += 1
                if standing.version.number == self._newest.version.number:
                    break
        if self._stop.is_set():
            return standing
        if standing.version.number < self._newest.version.number:
            raise AstraStreamError(
                f"{self._batches_place} must hold the batches of every version announced, up to "
                f"{self._newest.version}: got those up to {standing.version}. Records were lost: "
                "restore the topic, or start a run of another name."
            )
        return self._compare(standing)

    def _restore(self, announced: Mapping[int, WeightAnnouncement]) -> Standing:
        """Load the newest checkpoint that is whole, else begin with the first batch."""
        for _, announcement in sorted(announced.items(), reverse=True):
            try:
                if announcement.checkpoint:
                    facts = self._checkpoints.restore(announcement.checkpoint, self._backend)
                    self._reader.seek(self._batches_place, facts["next_offset"])
                    return Standing.from_facts(facts["standing"])
            except WeightsError as error:
                logger.warning("checkpoint left out", extra={"reason": str(error)})
        self._reader.seek(self._batches_place, 0)
        return Standing(version=PolicyVersion(self._newest.version.lineage, 0))

    def _require_unbegun(self) -> None:
        """Refuse to announce a first version where batches were trained before."""
        if found := self._reader.committed([self._batches_place]):
            raise AstraStreamError(
                f"{self._settings.weights_topic} must hold what was announced of the batches "
                f"below {self._batches_place}@{found[self._batches_place].offset}: got nothing. "
                "It was emptied: restore it, or start a run of another name."
            )

    def _compare(self, standing: Standing) -> Standing:
        """Go on in the lineage if the weights are those announced, else open another."""
        got = hash_of(self._backend)
        if got == self._newest.root_hash:
            standing = replace(standing, version=self._newest.version)
            # What followers could not fetch is there again, or refused by its name.
            self._upload(self._unbatched(standing))
            logger.info("restored", extra={"version": str(standing.version)})
            return standing
        lineage = self._newest.version.lineage + 1
        opened = replace(standing, version=PolicyVersion(lineage, standing.version.number))
        logger.warning(
            "lineage opened: training again made other weights",
            extra={"version": str(opened.version), "hash": got, "was": self._newest.root_hash},
        )
        self._publish_alone(opened)
        return opened

    def _publish_alone(self, standing: Standing) -> None:
        """Announce what the backend holds, without a batch."""
        self._publish(self._unbatched(standing))

    def _unbatched(self, standing: Standing) -> Trained:
        weights = self._backend.export()
        return Trained(standing=standing, read=None, weights=weights, metrics={}, checkpoint=None)
