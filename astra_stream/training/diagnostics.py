"""What a step says about itself: whether it collapses, clips, or learns from samples too old.

Sums are collected over micro-batches and divided once, so that the cut does not show.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from astra_stream.algorithms.losses import LossInputs, estimate_kl, masked_sum
from astra_stream.algorithms.packing import Batch


@dataclass(slots=True)
class PolicySums:
    """Sums over the trained tokens seen so far in one update."""

    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    max_abs_log_ratio: float = 0.0

    @torch.no_grad()
    def add(self, inputs: LossInputs, metrics: Mapping[str, Tensor]) -> None:
        """Add some rows, with the sums that the loss reports for them."""
        if not inputs.loss_mask.any():
            return
        difference = inputs.current_logprobs - inputs.behavior_logprobs
        log_ratio = difference.where(inputs.loss_mask, 0.0)
        ratio = log_ratio.double().clamp(max=300.0).exp()
        kl = {
            f"kl_behavior_{kind}": estimate_kl(
                inputs.behavior_logprobs, inputs.current_logprobs, estimator=kind
            )
            for kind in ("k1", "k3")
        }
        values = {"ratio": ratio, "ratio_squared": ratio.square(), **kl}
        if inputs.entropy is not None:
            values["entropy"] = inputs.entropy
        sums = {name: masked_sum(value, inputs) for name, value in values.items()}
        for name, value in (sums | dict(metrics)).items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
        self.tokens += int(inputs.loss_mask.sum())
        self.max_abs_log_ratio = max(self.max_abs_log_ratio, float(log_ratio.abs().max()))

    def means(self) -> dict[str, float]:
        """Diagnostics by name; NaN without tokens."""
        tokens = self.tokens or float("nan")
        means = {name: value / tokens for name, value in self.sums.items()}
        ratio, squared = means.pop("ratio", np.nan), means.pop("ratio_squared", np.nan)
        means["kl_behavior"] = means.get("kl_behavior_k3", np.nan)
        means["ess_fraction"] = ratio**2 / squared if squared else float("nan")
        means["ratio_max_abs_log"] = self.max_abs_log_ratio
        return means


def batch_diagnostics(batch: Batch) -> dict[str, float]:
    """What the batch alone tells. A trajectory counts once for rewards and lengths.

    Args:
        batch: With at least one sample.
    """
    by_trajectory = {sample.trajectory_id: sample for sample in batch.samples}
    staleness = [sample.staleness for sample in batch.samples]
    advantages = batch.sample_columns["advantages"]
    sequences = by_trajectory.values()
    return {
        "num_samples": float(len(batch.samples)),
        "num_trajectories": float(len(by_trajectory)),
        "num_tokens": float(batch.trained_tokens),
        "mean_length_tokens": batch.trained_tokens / len(by_trajectory),
        "reward_mean": float(np.mean([one.reward for one in sequences])),
        "raw_outcome_mean": float(np.mean([one.raw_outcome for one in sequences])),
        "truncated_fraction": float(np.mean([one.truncated for one in sequences])),
        "zero_advantage_fraction": float(np.mean(advantages == 0)),
        "staleness_mean": float(np.mean(staleness)),
        "staleness_max": float(max(staleness)),
    }
