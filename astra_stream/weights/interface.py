"""What a trainer asks of a publisher, and a worker of a follower, whatever travels between them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from astra_stream.engines.interface import WeightUpdate
from astra_stream.records import PolicyVersion, WeightAnnouncement


class Publisher(Protocol):
    """Writes versions of one policy's weights."""

    def publish(
        self,
        tensors: Mapping[str, np.ndarray],
        dtypes: Mapping[str, str],
        *,
        version: PolicyVersion,
        train_metrics: Mapping[str, float] | None = None,
        num_trained_samples: int = 0,
        num_trained_tokens: int = 0,
        batch_id: str = "",
        checkpoint: str = "",
    ) -> WeightAnnouncement:
        """Upload a version and make the record that announces it; the caller writes that record.

        A crash before that leaves objects that nothing names; the same call again finds them.

        Args:
            tensors: Hugging Face name to array in model order; bf16 as uint16 of the same bits.
            dtypes: Name to safetensors dtype.
            version: Which version the tensors are.
            train_metrics: Diagnostics of the step that made the version.
            num_trained_samples: Samples trained up to and including it.
            num_trained_tokens: Trained tokens up to and including it.
            batch_id: Batch that made it; empty for version 0.
            checkpoint: Key of the trainer checkpoint of this version; empty where there is none.

        Raises:
            ValueError: An array does not carry its dtype.
            TransientError: The store cannot be reached.
            WeightsError: The store holds, or gives back, other bytes.
        """
        ...


class Follower(Protocol):
    """Completes and verifies announced weights of one policy, on this machine."""

    @property
    def version(self) -> PolicyVersion | None:
        """Newest version that was verified; None before the first."""
        ...

    def fetch(self, announcement: WeightAnnouncement) -> WeightUpdate:
        """Bring a version here and verify every byte of it.

        Announcements in between may be left out: give the newest.

        Raises:
            WeightsError: Anything differs from the announcement, or it is older than what is held:
                keep the weights that are loaded.
            TransientError: The store cannot be reached.
        """
        ...

    def model_directory(self, announcement: WeightAnnouncement) -> Path:
        """A Hugging Face directory of a version, fetched and verified where it is not here yet."""
        ...
