"""The torch backend: one process, fp32, AdamW, gradients accumulated over micro-batches.

A batch that makes a loss or a gradient that is not finite is refused before anything changes, so
the state that the next batch finds is the one before. Threads and seed are set for the process.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astra_stream.algorithms.fingerprint import NamedShape, model_fingerprint
from astra_stream.algorithms.losses import Denominators, Loss, LossInputs
from astra_stream.algorithms.packing import Batch
from astra_stream.errors import ConfigError, RecordError
from astra_stream.training.checkpoint_files import read_state, write_state
from astra_stream.training.diagnostics import PolicySums, batch_diagnostics
from astra_stream.training.interface import ExportedWeights
from astra_stream.training.master_weights import MasterWeights
from astra_stream.training.micro_batches import (
    MicroBatch,
    count_denominators,
    cut_micro_batches,
)
from astra_stream.training.packed_model import PackedModel, TokenLogprobs

RANDOM_STATE = "random_state"


class TorchBackend:
    """Trains a Hugging Face causal language model.

    Args:
        directory: Model in Hugging Face format.
        loss: With its parameters bound.
        lr: Learning rate after the warm-up.
        betas: Of AdamW.
        weight_decay: Of AdamW, on matrices.
        eps: Of AdamW.
        max_grad_norm: Longer gradients are scaled down to this; 0 scales none.
        warmup_steps: Updates over which the learning rate rises from 0.
        updates_per_batch: Optimizer updates on each batch; together they make one version.
        tokens_per_micro_batch: Places computed at once: what bounds the memory (their logits, a
            few times over). On a CPU, what fits its cache is also the fastest.
        num_threads: Of torch in this process.
        seed: Of torch in this process.
        reference_directory: Frozen model for a divergence term; None for none.
        gradient_checkpointing: Recompute activations instead of keeping them.

    Raises:
        ConfigError: A parameter is out of range, the directory holds no model, its layers cannot
            read packed rows, or the loss refuses its parameters.
    """

    def __init__(
        self,
        directory: Path,
        *,
        loss: Loss,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        max_grad_norm: float = 1.0,
        warmup_steps: int = 0,
        updates_per_batch: int = 1,
        tokens_per_micro_batch: int = 2048,
        num_threads: int = 1,
        seed: int = 0,
        reference_directory: Path | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        _require_range("lr", lr, 0)
        _require_range("max_grad_norm", max_grad_norm, 0)
        _require_range("warmup_steps", warmup_steps, 0)
        _require_range("updates_per_batch", updates_per_batch, 1)
        _require_range("tokens_per_micro_batch", tokens_per_micro_batch, 1)
        _require_range("num_threads", num_threads, 1)
        torch.set_num_threads(num_threads)
        torch.manual_seed(seed)
        self._loss = loss
        self._lr = lr
        self._max_grad_norm = max_grad_norm
        self._warmup_steps = warmup_steps
        self._updates_per_batch = updates_per_batch
        self._tokens_per_micro_batch = tokens_per_micro_batch
        self._model = PackedModel(directory, gradient_checkpointing=gradient_checkpointing)
        self._reference = PackedModel(reference_directory) if reference_directory else None
        self._weights = MasterWeights(
            self._model.model, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay
        )
        self._optimizer_facts = {"optimizer": "adamw", "betas": list(betas), "eps": eps}
        self._config_json = (directory / "config.json").read_text()
        _try_loss(loss, has_reference=self._reference is not None)

    def step(self, batch: Batch) -> dict[str, float]:
        """Train on one batch, ``updates_per_batch`` times; return diagnostics by name.

        A batch without samples changes nothing and says ``skipped`` 1.

        Raises:
            RecordError: The batch cannot be trained, or its loss or gradient is not finite; the
                state is the one before.
        """
        learning_rate = self._learning_rate()
        if not batch.samples:
            empty = {"skipped": 1.0, "num_samples": 0.0, "num_tokens": 0.0}
            return {**empty, "learning_rate": learning_rate}
        self._require_vocabulary(batch)
        micro_batches = cut_micro_batches(
            batch, tokens_per_micro_batch=self._tokens_per_micro_batch
        )
        reference = self._frozen_logprobs(self._reference, micro_batches)
        is_repeated = self._updates_per_batch > 1
        proximal = self._frozen_logprobs(self._model if is_repeated else None, micro_batches)
        before = _copy(self._weights.state()) if is_repeated else {}
        num_updates = self._weights.num_updates
        frozen = list(zip(micro_batches, proximal, reference, strict=True))
        try:
            updates = [self._update(batch, frozen) for _ in range(self._updates_per_batch)]
        except RecordError:
            if is_repeated:
                self._weights.load_state(before, num_updates=num_updates)
            raise
        return {
            "skipped": 0.0,
            "learning_rate": learning_rate,
            **batch_diagnostics(batch),
            **_mean_over_updates(updates),
        }

    def export(self) -> ExportedWeights:
        """The published values of every tensor in model order, tied tensors once; copied."""
        return self._weights.export()

    def fingerprint(self) -> str:
        """SHA-256 of the model's configuration and published names, dtypes and shapes."""
        weights = self.export()
        return model_fingerprint(
            self._config_json,
            (NamedShape(n, weights.dtypes[n], a.shape) for n, a in weights.tensors.items()),
        )

    def save(self, directory: Path) -> None:
        """Write master weights, optimizer and random state; replaces what stands there."""
        write_state(
            directory,
            tensors={**self._weights.state(), RANDOM_STATE: torch.get_rng_state()},
            facts=self._facts() | {"num_updates": self._weights.num_updates},
            name=str(self._weights.num_updates),
        )

    def restore(self, directory: Path) -> None:
        """Continue from what ``save`` wrote, bit for bit.

        Raises:
            ConfigError: It is of another model or optimizer; names the difference.
        """
        tensors, facts = read_state(directory)
        for name, wanted in self._facts().items():
            if facts.get(name) != wanted:
                raise ConfigError(
                    f"checkpoint {str(directory)!r} must have {name} {wanted!r}: got "
                    f"{facts.get(name)!r}. Restore it with the model and optimizer it was made by."
                )
        random_state = tensors.pop(RANDOM_STATE)
        self._weights.load_state(tensors, num_updates=facts["num_updates"])
        torch.set_rng_state(random_state)

    def _facts(self) -> dict[str, Any]:
        return {"model_fingerprint": self.fingerprint(), **self._optimizer_facts}

    def _learning_rate(self) -> float:
        share = (self._weights.num_updates + 1) / max(self._warmup_steps, 1)
        return self._lr * min(1.0, share)

    def _require_vocabulary(self, batch: Batch) -> None:
        low, high = int(batch.tokens.min()), int(batch.tokens.max())
        if low < 0 or high >= self._model.vocabulary_size():
            raise RecordError(
                f"batch {batch.batch_id!r} must have token ids from 0 to "
                f"{self._model.vocabulary_size() - 1}: got {low} to {high}. "
                "Roll out and train with one tokenizer."
            )

    def _update(
        self,
        batch: Batch,
        frozen: Iterable[tuple[MicroBatch, Tensor | None, Tensor | None]],
    ) -> dict[str, float]:
        self._weights.forget_gradients()
        denominators = count_denominators(batch)
        sums, total_loss = PolicySums(), 0.0
        for micro_batch, proximal, reference in frozen:
            inputs = _loss_inputs(
                micro_batch, self._model(micro_batch), denominators, (proximal, reference)
            )
            output = self._loss(inputs)
            output.loss.backward()
            total_loss += float(output.loss.detach())
            sums.add(inputs, output.metrics)
        grad_norm = float(self._clip_gradients())
        for name, value in (("loss", total_loss), ("gradient norm", grad_norm)):
            if not math.isfinite(value):
                raise RecordError(
                    f"the {name} of batch {batch.batch_id!r} must be finite: got {value}. "
                    "Look at its rewards and advantages; nothing was changed."
                )
        self._weights.update(lr=self._learning_rate())
        return {"loss": total_loss, "grad_norm": grad_norm, **sums.means()}

    def _clip_gradients(self) -> Tensor:
        parameters = list(self._weights.parameters.values())
        max_norm = self._max_grad_norm or math.inf
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    @torch.no_grad()
    def _frozen_logprobs(
        self, model: PackedModel | None, micro_batches: list[MicroBatch]
    ) -> list[Tensor | None]:
        return [model(one).logprobs if model else None for one in micro_batches]


def _loss_inputs(
    micro_batch: MicroBatch,
    current: TokenLogprobs,
    denominators: Denominators,
    frozen: tuple[Tensor | None, Tensor | None],
) -> LossInputs:
    proximal, reference = frozen
    return LossInputs(
        current_logprobs=current.logprobs,
        behavior_logprobs=micro_batch.behavior_logprobs,
        proximal_logprobs=proximal,
        reference_logprobs=reference,
        advantages=micro_batch.advantages,
        loss_mask=micro_batch.loss_mask,
        weights=micro_batch.weights,
        sample_ids=micro_batch.sample_ids,
        sequence_ids=micro_batch.sequence_ids,
        sequence_tokens=micro_batch.sequence_tokens,
        denominators=denominators,
        entropy=current.entropy,
    )


def _mean_over_updates(updates: list[dict[str, float]]) -> dict[str, float]:
    means = {name: math.fsum(u[name] for u in updates) / len(updates) for name in updates[0]}
    return means | {"ratio_max_abs_log": max(u["ratio_max_abs_log"] for u in updates)}


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def _require_range(name: str, value: float, minimum: float) -> None:
    if not (math.isfinite(value) and value >= minimum):
        raise ConfigError(f"{name} must be at least {minimum}: got {value}. Correct the run file.")


def _try_loss(loss: Loss, *, has_reference: bool) -> None:
    """Call the loss on one sample of two tokens, so that it refuses its parameters at the start."""
    zeros = torch.zeros(1, 2)
    ids = torch.zeros(1, 2, dtype=torch.int64)
    loss(
        LossInputs(
            current_logprobs=zeros,
            behavior_logprobs=zeros,
            reference_logprobs=zeros if has_reference else None,
            advantages=zeros,
            loss_mask=torch.tensor([[False, True]]),
            weights=zeros + 1,
            sample_ids=ids,
            sequence_ids=ids,
            sequence_tokens=zeros + 1,
            denominators=Denominators(tokens=1, sequences=1),
            entropy=zeros,
        )
    )
