"""A trainer without a model: the real service on a log, with a backend that only says when."""

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from embedded import NAMES, open_codec

from astra_stream.algorithms.packing import Batch
from astra_stream.clock import SystemClock
from astra_stream.log.interface import Log
from astra_stream.store.memory import MemoryStore
from astra_stream.training.checkpoints import CheckpointStore
from astra_stream.training.interface import ExportedWeights
from astra_stream.training.service import Trainer, TrainerSettings
from astra_stream.weights.publisher import SnapshotPublisher

NEVER = 1_000_000
"""Versions: more than there are."""


class StandInBackend:
    """Calls ``on_step`` where a model would be trained, and exports bf16 of fp32 zeros.

    Args:
        on_step: Given the batch.
        num_parameters: Of the weights that are exported.
    """

    def __init__(self, on_step: Callable[[Batch], None], *, num_parameters: int = 1000) -> None:
        self._on_step = on_step
        self._weights = torch.zeros(num_parameters)

    def step(self, batch: Batch) -> dict[str, float]:
        self._on_step(batch)
        self._weights += 1.0
        return {"reward_mean": 0.0}

    def export(self) -> ExportedWeights:
        values: np.ndarray = self._weights.bfloat16().view(torch.uint16).numpy()
        return ExportedWeights(tensors={"weight": values}, dtypes={"weight": "BF16"})

    def save(self, directory: Path) -> None:
        raise NotImplementedError(f"nothing is saved to {directory}")

    def restore(self, directory: Path) -> None:
        raise NotImplementedError(f"nothing is restored from {directory}")


def train(log: Log, policy: str, backend: StandInBackend) -> None:
    """Train until the last batch of a policy's topic, over a store in memory."""
    store = MemoryStore()
    settings = TrainerSettings(
        policy=policy,
        batches_topic=NAMES.batches(policy),
        weights_topic=NAMES.weights(policy),
        outcomes_topic=NAMES.outcomes,
        metrics_topic=NAMES.metrics,
        group=NAMES.group("trainer", policy),
        max_staleness=NEVER,
        checkpoint_every=NEVER,
    )
    with tempfile.TemporaryDirectory() as directory:
        Trainer(
            log=log,
            codec=open_codec(),
            backend=backend,
            publisher=SnapshotPublisher(store, policy=policy, files={"config.json": b"{}"}),
            checkpoints=CheckpointStore(store, policy=policy, directory=Path(directory)),
            settings=settings,
            clock=SystemClock(),
            stop=threading.Event(),
        ).run()
