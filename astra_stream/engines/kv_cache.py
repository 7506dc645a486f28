"""Keys and values of running sequences, one row per slot, written at each row's own position.

Live rows are the first ones, so a step attends over a view of the cache and copies nothing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

FIRST_TOKENS = 128
"""Time axis of a new cache; it doubles up to the model's context."""


@dataclass(slots=True)
class LayerRows:
    """Keys and values of one layer, each [slots * capacity, heads * head width]."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Where the next forward pass writes, and what its attention sees."""

    targets: torch.Tensor
    """[tokens written] int64 rows of the flattened cache."""
    sources: torch.Tensor | None
    """[slots written] int64 row of the batch to write; None where each batch row has one slot."""
    visible: tuple[int, int] | None
    """Slots and tokens that attention reads; None where the pass reads only its own tokens."""


class SlotCache(Cache):
    """A key-value cache for sequences that join and leave between steps.

    Args:
        num_slots: Most sequences at once.
        max_tokens: Most tokens of a sequence.
    """

    def __init__(self, num_slots: int, max_tokens: int) -> None:
        super().__init__(layers=[])
        self._num_slots = num_slots
        self._max_tokens = max_tokens
        self._capacity = min(FIRST_TOKENS, max_tokens)
        self._rows: list[LayerRows] = []
        self._plan: WritePlan | None = None

    def reserve(self, num_tokens: int, num_active: int) -> None:
        """Make room for sequences of ``num_tokens``, keeping the first ``num_active`` slots."""
        if num_tokens <= self._capacity:
            return
        before = self._capacity
        while self._capacity < num_tokens:
            self._capacity = min(2 * self._capacity, self._max_tokens)
        for layer in self._rows:
            layer.keys = self._grown(layer.keys, before, num_active)
            layer.values = self._grown(layer.values, before, num_active)

    def _grown(self, rows: torch.Tensor, before: int, num_active: int) -> torch.Tensor:
        width = rows.shape[1]
        grown = _zeros(self._num_slots, self._capacity, width)
        grown[:num_active, :before] = rows.view(self._num_slots, before, width)[:num_active]
        return grown.view(-1, width)

    def plan_prefill(self, slots: torch.Tensor, sources: torch.Tensor, num_tokens: int) -> None:
        """Write batch row ``sources[i]`` to slot ``slots[i]`` from position 0.

        Args:
            slots: [N] int64.
            sources: [N] int64 rows of the batch; several slots may share one.
            num_tokens: Width of the batch.
        """
        targets = slots[:, None] * self._capacity + torch.arange(num_tokens)
        self._plan = WritePlan(targets.flatten(), sources, None)

    def plan_decode(self, positions: torch.Tensor, num_visible: int) -> None:
        """Write one token to each of the first slots, and read ``num_visible`` tokens of each.

        Args:
            positions: [N] int64, the place of the token in slot 0, 1, ...
            num_visible: The largest position plus one.
        """
        num_active = len(positions)
        targets = torch.arange(num_active) * self._capacity + positions
        self._plan = WritePlan(targets, None, (num_active, num_visible))

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` of slot ``source`` over slot ``target``."""
        start, goal = source * self._capacity, target * self._capacity
        for layer in self._rows:
            for rows in (layer.keys, layer.values):
                rows[goal : goal + num_tokens] = rows[start : start + num_tokens]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write what the plan says; called by each layer of the model.

        Args:
            key_states: [B, heads, T, width].
            value_states: Same shape.
            layer_idx: Layer that calls.

        Returns:
            Keys and values that its attention reads.
        """
        plan = self._plan
        if plan is None:
            raise RuntimeError("a forward pass must be planned: got none. Plan it first.")
        if layer_idx == len(self._rows):
            self._rows.append(LayerRows(self._empty(key_states), self._empty(value_states)))
        layer = self._rows[layer_idx]
        _write(layer.keys, key_states, plan)
        _write(layer.values, value_states, plan)
        if plan.visible is None:
            return key_states, value_states
        keys = self._read(layer.keys, key_states, plan.visible)
        return keys, self._read(layer.values, value_states, plan.visible)

    def _empty(self, states: torch.Tensor) -> torch.Tensor:
        return _zeros(self._num_slots * self._capacity, states.shape[1] * states.shape[3])

    def _read(
        self, rows: torch.Tensor, states: torch.Tensor, visible: tuple[int, int]
    ) -> torch.Tensor:
        shape = (self._num_slots, self._capacity, states.shape[1], states.shape[3])
        return rows.view(shape)[: visible[0], : visible[1]].transpose(1, 2)


def _zeros(*shape: int) -> torch.Tensor:
    # Hidden places are multiplied by 0, so they may not be NaN; numpy's zeros take no memory
    # until they are written.
    return torch.from_numpy(np.zeros(shape, np.float32))


def _write(rows: torch.Tensor, states: torch.Tensor, plan: WritePlan) -> None:
    by_token = states.transpose(1, 2)
    if plan.sources is not None:
        by_token = by_token[plan.sources]
    rows.index_copy_(0, plan.targets, by_token.reshape(-1, rows.shape[1]))
