"""Policy losses over packed rows; the one module here that imports torch.

A loss returns a sum that is already divided by denominators of the whole batch. So the losses of
micro-batches add up, and how a batch is cut changes nothing. A "sequence" is a trajectory: its
segments count as one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from astra_stream.errors import ConfigError

Denominator = Literal["token", "sequence", "constant"]
KlEstimator = Literal["k1", "k2", "k3"]

MAX_LOG_RATIO = 20.0
"""exp(20) is 5e8: far past any clip, and still finite when squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Counts over the whole batch, made before it is cut into micro-batches."""

    tokens: int
    """Trained tokens."""
    sequences: int
    """Trajectories with at least one trained token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossInputs:
    """Some packed rows of a batch. Values where the mask is false mean nothing."""

    current_logprobs: Tensor
    """[B, T] float32 of the policy under training, with gradient."""
    behavior_logprobs: Tensor
    """[B, T] float32 as sampled."""
    proximal_logprobs: Tensor | None = None
    """[B, T] float32 before the first update on this batch; None where this is the first."""
    reference_logprobs: Tensor | None = None
    """[B, T] float32 of the frozen model; None without one."""
    advantages: Tensor
    """[B, T] float32, the sample's advantage at each of its tokens."""
    loss_mask: Tensor
    """[B, T] bool, true on tokens that train."""
    weights: Tensor
    """[B, T] float32, the sample's weight at each of its tokens."""
    sample_ids: Tensor
    """[B, T] int64 index of the sample in the batch; -1 at padding."""
    sequence_ids: Tensor
    """[B, T] int64 index of the trajectory in the batch; -1 at padding."""
    sequence_tokens: Tensor
    """[B, T] float32 trained tokens that the token's trajectory has in the whole batch."""
    denominators: Denominators
    """Counts over the whole batch."""
    entropy: Tensor | None = None
    """[B, T] float32 entropy of the distribution that predicts each token, without gradient."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossOutput:
    """A part of the batch's loss, and sums to report."""

    loss: Tensor
    """[] the part that these rows add to the loss of the batch."""
    metrics: Mapping[str, Tensor]
    """name to [] sum over the trained tokens of these rows; the trainer divides by their number."""


Loss = Callable[[LossInputs], LossOutput]
"""A loss whose parameters are bound."""


def grpo(
    inputs: LossInputs,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    denominator: Denominator = "token",
    constant_tokens: int | None = None,
    kl_coefficient: float = 0.0,
    kl_estimator: KlEstimator = "k3",
    dual_clip: float | None = None,
) -> LossOutput:
    """Clipped policy gradient on the importance ratio against the behavior policy.

    Args:
        inputs: Packed rows.
        clip_low: The ratio is held above 1 - ``clip_low`` where that helps the loss.
        clip_high: The ratio is held below 1 + ``clip_high``; larger than ``clip_low`` is DAPO.
        denominator: ``token`` divides by the trained tokens of the batch (DAPO), ``sequence`` takes
            the mean over each trajectory, then over trajectories (GRPO), ``constant`` divides by
            trajectories x ``constant_tokens`` (Dr. GRPO).
        constant_tokens: Length for ``constant``, usually ``max_new_tokens``.
        kl_coefficient: Weight of the divergence from the reference model; 0 needs no reference.
        kl_estimator: k1 (log ratio), k2 (half its square) or k3 (never negative, less noise).
        dual_clip: Bounds the loss of bad samples at this multiple of their advantage; above 1.

    Returns:
        The loss, and sums of ``clip_fraction``, ``ratio_mean`` and, with a reference,
        ``kl_reference``.

    Raises:
        ConfigError: A parameter cannot be, or there is no reference model to compare with.
    """
    _require_clip(clip_low, clip_high, dual_clip)
    ratio = _ratio(inputs.current_logprobs, inputs.behavior_logprobs)
    losses, is_clipped = clipped_losses(
        ratio, inputs.advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    metrics = {
        "clip_fraction": masked_sum(is_clipped.to(ratio.dtype), inputs),
        "ratio_mean": masked_sum(ratio.detach(), inputs),
    }
    if kl_coefficient:
        divergence = reference_divergence(inputs, estimator=kl_estimator)
        losses = losses + kl_coefficient * divergence
        metrics["kl_reference"] = masked_sum(divergence.detach(), inputs)
    loss = aggregate(losses, inputs, denominator=denominator, constant_tokens=constant_tokens)
    return LossOutput(loss=loss, metrics=metrics)


def decoupled_ppo(
    inputs: LossInputs,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    max_behavior_weight: float | None = None,
    denominator: Denominator = "token",
    constant_tokens: int | None = None,
) -> LossOutput:
    """Clip against the policy before the update; weigh by how far that is from the behavior policy.

    Args:
        inputs: Packed rows; without proximal log-probabilities the current ones stand for them.
        clip_low: The ratio to the proximal policy is held above 1 - ``clip_low``.
        clip_high: It is held below 1 + ``clip_high``.
        max_behavior_weight: Bound on proximal / behavior, which carries no gradient; None for none.
        denominator: As in ``grpo``.
        constant_tokens: As in ``grpo``.

    Returns:
        The loss, and sums of ``clip_fraction``, ``ratio_mean`` and ``behavior_weight_mean``.

    Raises:
        ConfigError: A parameter cannot be.
    """
    _require_clip(clip_low, clip_high, None)
    proximal = inputs.proximal_logprobs
    proximal = inputs.current_logprobs.detach() if proximal is None else proximal
    ratio = _ratio(inputs.current_logprobs, proximal)
    losses, is_clipped = clipped_losses(
        ratio, inputs.advantages, clip_low=clip_low, clip_high=clip_high
    )
    weight = _ratio(proximal, inputs.behavior_logprobs)
    if max_behavior_weight is not None:
        weight = weight.clamp(max=max_behavior_weight)
    loss = aggregate(
        weight * losses, inputs, denominator=denominator, constant_tokens=constant_tokens
    )
    metrics = {
        "clip_fraction": masked_sum(is_clipped.to(ratio.dtype), inputs),
        "ratio_mean": masked_sum(ratio.detach(), inputs),
        "behavior_weight_mean": masked_sum(weight, inputs),
    }
    return LossOutput(loss=loss, metrics=metrics)


def clipped_losses(
    ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The pessimistic one of the plain and the clipped loss, by token.

    Args:
        ratio: Importance ratio.
        advantages: Same shape.
        clip_low: Lower bound is 1 - ``clip_low``.
        clip_high: Upper bound is 1 + ``clip_high``.
        dual_clip: Where the advantage is negative, the loss is at most this times its size.

    Returns:
        The losses, and whether the clip took the token's gradient away; both shaped like ``ratio``.
    """
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(plain, clipped)
    is_clipped = clipped > plain
    if dual_clip is not None:
        bound = torch.where(advantages < 0, -advantages * dual_clip, torch.inf)
        is_clipped = is_clipped | (losses > bound)
        losses = torch.minimum(losses, bound)
    return losses, is_clipped.detach()


def reference_divergence(inputs: LossInputs, *, estimator: KlEstimator) -> Tensor:
    """[B, T] estimate of KL(current, reference) from the sampled token.

    Raises:
        ConfigError: There is no reference model, or no such estimator.
    """
    if inputs.reference_logprobs is None:
        raise ConfigError(
            "kl_coefficient must be 0 without a reference model: got one above 0. "
            "Name the directory of a reference model."
        )
    return estimate_kl(inputs.current_logprobs, inputs.reference_logprobs, estimator=estimator)


def estimate_kl(logprobs: Tensor, other_logprobs: Tensor, *, estimator: KlEstimator) -> Tensor:
    """Estimate KL(policy, other) from tokens drawn from the policy.

    Args:
        logprobs: Of the tokens under the policy.
        other_logprobs: Of the tokens under the other; same shape.
        estimator: k1, k2 or k3.

    Returns:
        One estimate per token, same shape.

    Raises:
        ConfigError: There is no such estimator.
    """
    log_ratio = (other_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    match estimator:
        case "k1":
            return -log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return torch.expm1(log_ratio) - log_ratio
        case _:
            raise ConfigError(
                f"kl_estimator must be 'k1', 'k2' or 'k3': got {estimator!r}. Choose one."
            )


def aggregate(
    losses: Tensor,
    inputs: LossInputs,
    *,
    denominator: Denominator = "token",
    constant_tokens: int | None = None,
) -> Tensor:
    """Sum token losses over the mask, weighted, divided by a count over the whole batch.

    Args:
        losses: [B, T] by token.
        inputs: Whose mask, weights and denominators.
        denominator: As in ``grpo``.
        constant_tokens: As in ``grpo``.

    Returns:
        [] the part that these rows add to the loss of the batch.

    Raises:
        ConfigError: There is no such denominator, or ``constant`` comes without its length.
    """
    weighted = losses * inputs.weights
    counts = inputs.denominators
    match denominator:
        case "token":
            return masked_sum(weighted, inputs) / max(counts.tokens, 1)
        case "sequence":
            means = weighted / inputs.sequence_tokens.clamp(min=1)
            return masked_sum(means, inputs) / max(counts.sequences, 1)
        case "constant":
            if constant_tokens is None or constant_tokens < 1:
                raise ConfigError(
                    "constant_tokens must be at least 1 with denominator = 'constant': got "
                    f"{constant_tokens}. Use the run's max_new_tokens."
                )
            return masked_sum(weighted, inputs) / (max(counts.sequences, 1) * constant_tokens)
        case _:
            raise ConfigError(
                "denominator must be 'token', 'sequence' or 'constant': got "
                f"{denominator!r}. Choose one."
            )


def masked_sum(values: Tensor, inputs: LossInputs) -> Tensor:
    """[] sum of [B, T] values over the trained tokens; whatever stands elsewhere is left out."""
    return values.where(inputs.loss_mask, 0.0).sum()


def _ratio(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    return (logprobs - other_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _require_clip(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    if not 0 <= clip_low <= 1:
        raise ConfigError(f"clip_low must be from 0 to 1: got {clip_low}. Use 0.2.")
    if not clip_high >= 0:
        raise ConfigError(f"clip_high must be at least 0: got {clip_high}. Use 0.2.")
    if dual_clip is not None and not dual_clip > 1:
        raise ConfigError(f"dual_clip must be above 1: got {dual_clip}. Use 3.0 or leave it out.")
