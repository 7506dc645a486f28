"""What every training backend must do; subclass ``BackendContract`` in a test file.

A subclass gives ``make``, which builds a backend for a tiny model with a vocabulary of at least
``builders.VOCABULARY``, always from the same start.
"""

import dataclasses
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import pytest

from astra_stream.algorithms.packing import Batch
from astra_stream.errors import ConfigError, RecordError
from astra_stream.testing.builders import make_batch, make_group
from astra_stream.training.interface import Backend, ExportedWeights

STEP_DIAGNOSTICS = frozenset(
    {
        "loss",
        "grad_norm",
        "entropy",
        "kl_behavior",
        "ess_fraction",
        "clip_fraction",
        "ratio_max_abs_log",
        "zero_advantage_fraction",
        "truncated_fraction",
        "mean_length_tokens",
        "reward_mean",
        "staleness_mean",
        "staleness_max",
        "num_tokens",
        "num_samples",
        "learning_rate",
        "skipped",
    }
)
"""What ``step`` reports at least."""


def weights_bytes(weights: ExportedWeights) -> dict[str, bytes]:
    """Name to the bytes of each tensor, to be compared."""
    return {name: tensor.tobytes() for name, tensor in weights.tensors.items()}


def with_advantages(batch: Batch, value: float) -> Batch:
    """The same batch with one advantage for all samples."""
    advantages = np.full(len(batch.samples), value, np.float32)
    return dataclasses.replace(batch, sample_columns={"advantages": advantages})


def nth_batch(number: int) -> Batch:
    """One of a row of different batches."""
    groups = [
        make_group(1, 0, 0, 1, group_id=f"b{number}g{i}", reply_tokens=(3, 5, 2, 1 + i))
        for i in range(3)
    ]
    return make_batch(groups, trains_version=number)


class BackendContract(ABC):
    """The suite. Backends are made afresh for each test."""

    @abstractmethod
    def make(self) -> Backend:
        """A backend whose learning rate is not 0."""

    def test_a_step_changes_the_published_weights(self) -> None:
        backend = self.make()
        before = weights_bytes(backend.export())
        backend.step(nth_batch(0))
        assert weights_bytes(backend.export()) != before

    def test_a_step_reports_its_diagnostics(self) -> None:
        diagnostics = self.make().step(nth_batch(0))
        assert diagnostics.keys() >= STEP_DIAGNOSTICS
        assert all(np.isfinite(value) for value in diagnostics.values())
        assert diagnostics["skipped"] == 0
        assert diagnostics["num_samples"] == 12

    def test_exported_weights_do_not_change_with_the_next_step(self) -> None:
        backend = self.make()
        exported = backend.export()
        before = weights_bytes(exported)
        backend.step(nth_batch(0))
        assert weights_bytes(exported) == before
        assert exported.tensors.keys() == exported.dtypes.keys()

    def test_equal_batches_make_equal_weights(self) -> None:
        made = []
        for _ in range(2):
            backend = self.make()
            reported = [backend.step(nth_batch(number)) for number in range(2)]
            made.append((reported, weights_bytes(backend.export())))
        assert made[0] == made[1]

    def test_training_goes_on_bit_for_bit_after_a_restore(self, tmp_path: Path) -> None:
        backend = self.make()
        backend.step(nth_batch(0))
        backend.save(tmp_path / "checkpoint")
        went_on = [backend.step(nth_batch(number)) for number in (1, 2)]

        restored = self.make()
        restored.step(nth_batch(5))
        restored.restore(tmp_path / "checkpoint")

        assert [restored.step(nth_batch(number)) for number in (1, 2)] == went_on
        assert weights_bytes(restored.export()) == weights_bytes(backend.export())

    def test_a_checkpoint_before_the_first_step_can_be_restored(self, tmp_path: Path) -> None:
        backend = self.make()
        start = weights_bytes(backend.export())
        backend.save(tmp_path / "checkpoint")
        backend.step(nth_batch(0))
        backend.restore(tmp_path / "checkpoint")
        assert weights_bytes(backend.export()) == start

    def test_a_directory_without_checkpoint_is_refused(self, tmp_path: Path) -> None:
        backend = self.make()
        with pytest.raises(ConfigError, match="checkpoint must be a directory"):
            backend.restore(tmp_path / "nothing")

    def test_an_empty_batch_is_a_step_that_changes_nothing(self) -> None:
        backend, other = self.make(), self.make()
        diagnostics = backend.step(make_batch([], last=True))
        assert diagnostics["skipped"] == 1
        assert diagnostics["num_samples"] == 0
        assert backend.step(nth_batch(0)) == other.step(nth_batch(0))

    @pytest.mark.parametrize("value", [float("nan"), 3e38])
    def test_a_batch_that_is_not_finite_is_refused_and_changes_nothing(self, value: float) -> None:
        backend, other = self.make(), self.make()
        before = weights_bytes(backend.export())
        with pytest.raises(RecordError, match="of batch 'main/4' must be finite"):
            backend.step(with_advantages(nth_batch(4), value))
        assert weights_bytes(backend.export()) == before
        assert backend.step(nth_batch(0)) == other.step(nth_batch(0))

    def test_a_batch_without_advantages_is_refused(self) -> None:
        batch = dataclasses.replace(nth_batch(0), sample_columns={})
        with pytest.raises(RecordError, match="must have a sample column 'advantages'"):
            self.make().step(batch)

    def test_a_token_outside_the_vocabulary_is_refused(self) -> None:
        batch = nth_batch(0)
        batch.tokens[0, 0] = 1 << 24
        with pytest.raises(RecordError, match="must have token ids from 0 to"):
            self.make().step(batch)

    def test_a_greedy_sample_is_refused(self) -> None:
        batch = make_batch([make_group(1, 0, temperature=0.0)])
        with pytest.raises(RecordError, match="temperature must be above 0 while training"):
            self.make().step(batch)
