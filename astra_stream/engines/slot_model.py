"""A model over a slot cache: fill the cache of new rows, then advance all rows by one token."""

import inspect
from typing import Any

import numpy as np
import torch

from astra_stream.engines.kv_cache import SlotCache

PREFILL_TOKENS = 8192
"""Most padded tokens in one forward pass that fills the cache."""


class SlotModel:
    """A causal model whose batch rows are slots.

    Args:
        model: Hugging Face model with full attention.
        num_slots: Most rows.
        max_tokens: Most tokens of a row.
    """

    def __init__(self, model: Any, *, num_slots: int, max_tokens: int) -> None:
        self._model = model
        self._cache = SlotCache(num_slots, max_tokens)
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    def prefill(self, rows: list[int], sequences: list[np.ndarray], num_active: int) -> None:
        """Write the cache of whole sequences from their first token on.

        Args:
            rows: Slots to fill.
            sequences: For each, its tokens [T] without the one that is fed next; may be empty.
            num_active: Slots in use, the new ones included.
        """
        longest = max(map(len, sequences))
        self._cache.reserve(longest + 1, num_active)
        slots_by_sequence: dict[bytes, list[int]] = {}
        for row, sequence in zip(rows, sequences, strict=True):
            slots_by_sequence.setdefault(sequence.tobytes(), []).append(row)
        slots_by_sequence.pop(b"", None)
        chunk: list[tuple[np.ndarray, list[int]]] = []
        for key in sorted(slots_by_sequence, key=len):
            sequence = np.frombuffer(key, np.int64)
            if chunk and (len(chunk) + 1) * len(sequence) > PREFILL_TOKENS:
                self._prefill_chunk(chunk)
                chunk = []
            chunk.append((sequence, slots_by_sequence[key]))
        if chunk:
            self._prefill_chunk(chunk)

    def _prefill_chunk(self, chunk: list[tuple[np.ndarray, list[int]]]) -> None:
        width = len(chunk[-1][0])
        padded = np.zeros((len(chunk), width), np.int64)
        for row, (sequence, _) in enumerate(chunk):
            padded[row, : len(sequence)] = sequence
        slots = [slot for _, group in chunk for slot in group]
        sources = [row for row, (_, group) in enumerate(chunk) for _ in group]
        self._cache.plan_prefill(torch.tensor(slots), torch.tensor(sources), width)
        # Padding stands on the right, where a causal mask already hides it.
        mask = torch.full((1, 1, width, width), -torch.inf).triu_(1)
        positions = torch.arange(width)[None]
        self._forward(self._model.base_model, torch.from_numpy(padded), positions, mask)

    def decode(self, tokens: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        """Feed one token to each of the first rows.

        Args:
            tokens: [N] int64.
            positions: [N] int64 place of each in its row.

        Returns:
            [N, V] float32 logits of the token after each.
        """
        num_visible = int(positions.max()) + 1
        self._cache.reserve(num_visible, len(positions))
        places = torch.from_numpy(positions)
        self._cache.plan_decode(places, num_visible)
        hidden = torch.arange(num_visible) > places[:, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        output = self._forward(
            self._model, torch.from_numpy(tokens)[:, None], places[:, None], mask[:, None, None]
        )
        return output.logits[:, -1].float()

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Move the cache of one row over that of another."""
        self._cache.move(source, target, num_tokens)

    def _forward(
        self, module: Any, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> Any:
        return module(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **{self._cache_argument: self._cache},
        )
