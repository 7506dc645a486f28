"""What the trainer's loop asks of a backend: step on a batch, export weights, keep its state."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from astra_stream.algorithms.packing import Batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExportedWeights:
    """A model's published values, copied: the next step may run while they are written."""

    tensors: Mapping[str, np.ndarray]
    """Hugging Face name to array in model order; bf16 travels as uint16 of the same bits."""
    dtypes: Mapping[str, str]
    """Hugging Face name to safetensors dtype."""


class Backend(Protocol):
    """Trains; one thread uses it at a time."""

    def step(self, batch: Batch) -> dict[str, float]:
        """Train on one batch, ``updates_per_batch`` times; return diagnostics by name."""
        ...

    def export(self) -> ExportedWeights:
        """The published (rounded) values of every tensor, tied tensors once."""
        ...

    def save(self, directory: Path) -> None:
        """Write master weights, optimizer and random state as safetensors and JSON."""
        ...

    def restore(self, directory: Path) -> None:
        """Continue from what ``save`` wrote, bit for bit.

        Raises:
            ConfigError: It is of another model or optimizer; names the difference.
        """
        ...
