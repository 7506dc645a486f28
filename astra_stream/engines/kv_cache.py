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
    """Keys and values of one layer, each [slots, heads, capacity, head width].

    Tokens of one head lie together: attention read this order twice as fast as [slots, tokens].
    """

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(slots=True)
class WritePlan:
    """Where the next forward pass writes, and what its attention sees."""

    slots: torch.Tensor
    """[N] int64 slots that are written."""
    positions: torch.Tensor
    """[N or 1, T] int64 places of the T tokens."""
    sources: torch.Tensor | None
    """[N] int64 row of the batch to write; None where batch row i goes to slot i."""
    num_visible: int
    """Tokens of each slot that attention reads; 0 where it reads only the pass's own."""
    targets: torch.Tensor | None = None
    """[N * heads * T] int64 rows of a layer seen as [slots * heads * capacity, head width]."""

    def targets_in(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows to write, worked out for the first layer and kept for the others."""
        if self.targets is None:
            _, heads, capacity, _ = rows.shape
            head = self.slots[:, None] * heads + torch.arange(heads)
            self.targets = (head[:, :, None] * capacity + self.positions[:, None]).flatten()
        return self.targets


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
        grown = self._zeros(heads=rows.shape[1], width=rows.shape[3])
        grown[:num_active, :, :before] = rows[:num_active]
        return grown

    def _zeros(self, *, heads: int, width: int) -> torch.Tensor:
        # Hidden places are multiplied by 0, so they may not be NaN; numpy's zeros take no memory
        # until they are written.
        shape = (self._num_slots, heads, self._capacity, width)
        return torch.from_numpy(np.zeros(shape, np.float32))

    def plan_prefill(self, slots: torch.Tensor, sources: torch.Tensor, num_tokens: int) -> None:
        """Write batch row ``sources[i]`` to slot ``slots[i]`` from position 0.

        Args:
            slots: [N] int64.
            sources: [N] int64 rows of the batch; several slots may share one.
            num_tokens: Width of the batch.
        """
        self._plan = WritePlan(slots, torch.arange(num_tokens)[None], sources, 0)

    def plan_decode(self, positions: torch.Tensor, num_visible: int) -> None:
        """Write one token to each of the first slots, and read ``num_visible`` tokens of each.

        Args:
            positions: [N] int64, the place of the token in slot 0, 1, ...
            num_visible: The largest position plus one.
        """
        slots = torch.arange(len(positions))
        self._plan = WritePlan(slots, positions[:, None], None, num_visible)

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` of slot ``source`` over slot ``target``."""
        for layer in self._rows:
            for rows in (layer.keys, layer.values):
                rows[target, :, :num_tokens] = rows[source, :, :num_tokens]

    def update(  # pyrefly: ignore[missing-override-decorator]
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
            _, heads, _, width = key_states.shape
            empty = (self._zeros(heads=heads, width=width) for _ in range(2))
            self._rows.append(LayerRows(*empty))
        layer = self._rows[layer_idx]
        _write(layer.keys, key_states, plan)
        _write(layer.values, value_states, plan)
        if not plan.num_visible:
            return key_states, value_states
        live = slice(len(plan.slots)), slice(None), slice(plan.num_visible)
        return layer.keys[live], layer.values[live]


def _write(rows: torch.Tensor, states: torch.Tensor, plan: WritePlan) -> None:
    if plan.sources is not None:
        states = states[plan.sources]
    width = rows.shape[-1]
    rows.view(-1, width).index_copy_(0, plan.targets_in(rows), states.reshape(-1, width))
