"""One uniform number per token, and the token that it picks from a row of logits."""

from dataclasses import dataclass

import numpy as np
import torch

KEY_RANGE = 2**64


def draw_uniforms(seed: int, stream: int, num_tokens: int) -> np.ndarray:
    """The numbers that decide a sequence's tokens; they depend on nothing else.

    Args:
        seed: Seed of the request.
        stream: Which of its draws.
        num_tokens: How many.

    Returns:
        [num_tokens] float32 in [0, 1).
    """
    bits = np.random.Philox(key=np.array([seed % KEY_RANGE, stream % KEY_RANGE], dtype=np.uint64))
    return np.random.Generator(bits).random(num_tokens, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How each row of a batch is drawn; arrays are [N]."""

    temperatures: np.ndarray
    """float32; 0 is greedy."""
    top_p: np.ndarray
    """float32; 1 keeps all."""
    top_k: np.ndarray
    """int64; 0 keeps all."""
    uniforms: np.ndarray
    """float32 in [0, 1)."""


def choose_tokens(logits: torch.Tensor, settings: DrawSettings) -> tuple[np.ndarray, np.ndarray]:
    """Pick a token for each row by inverse transform.

    Args:
        logits: [N, V] float32.
        settings: How each row is drawn.

    Returns:
        [N] int64 tokens, and their [N] float32 log-probabilities over the full vocabulary at the
        row's temperature (1 where it is 0), whatever top-p and top-k leave out.
    """
    greedy = settings.temperatures == 0
    divisors = np.where(greedy, np.float32(1), settings.temperatures)
    if (divisors != 1).any():
        logits = logits / torch.from_numpy(divisors)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    if greedy.all():
        tokens = logprobs.argmax(dim=-1)
    else:
        tokens = _invert(_kept(logprobs.exp(), settings), torch.from_numpy(settings.uniforms))
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy), logprobs.argmax(dim=-1), tokens)
    return tokens.numpy(), logprobs.gather(1, tokens[:, None])[:, 0].numpy()


def _invert(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding may carry the product up to the total, which would pick a token past the last.
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms[:, None] * total, below)
    return torch.searchsorted(cumulative, target, right=True)[:, 0]


def _kept(probabilities: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
    rows = np.flatnonzero((settings.top_p < 1) | (settings.top_k > 0))
    if not len(rows):
        return probabilities
    ordered, order = probabilities[rows].sort(dim=-1, descending=True)
    size = probabilities.shape[1]
    top_k = torch.from_numpy(np.where(settings.top_k[rows] > 0, settings.top_k[rows], size))
    top_p = torch.from_numpy(np.where(settings.top_p[rows] < 1, settings.top_p[rows], 2.0))
    mass_before = ordered.cumsum(dim=-1) - ordered
    keep = (torch.arange(size) < top_k[:, None]) & (mass_before < top_p[:, None])
    keep[:, 0] = True
    kept = probabilities.clone()
    kept[rows] = torch.zeros_like(ordered).scatter(1, order, ordered * keep)
    return kept
