"""What a model directory says of itself, without loading it."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from astra_stream.errors import ConfigError

TRAINER_BYTES_PER_PARAMETER = 20
"""fp32 master weights, gradient and two moments, and the rounded copy of the forward pass."""
WORKER_BYTES_PER_PARAMETER = 6
"""fp32 weights, and the bf16 bytes that updates are checked on; the KV cache comes on top."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Size and context of a model."""

    num_parameters: int
    context_tokens: int

    @property
    def trainer_bytes(self) -> int:
        """About what a trainer holds, activations aside."""
        return self.num_parameters * TRAINER_BYTES_PER_PARAMETER

    @property
    def worker_bytes(self) -> int:
        """About what a rollout worker holds, its KV cache aside."""
        return self.num_parameters * WORKER_BYTES_PER_PARAMETER


def read_model_facts(directory: Path, *, key: str) -> ModelFacts:
    """Read config.json and the headers of the weights.

    Args:
        directory: A Hugging Face model directory.
        key: Subject of an error, such as ``run.toml: policies.main.model``.

    Raises:
        ConfigError: Something that a run needs is missing; lists all of it.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"{key} must be a directory with a Hugging Face model: got {str(directory)!r}, "
            "which does not exist. Correct the path, or save a model there."
        )
    weights = sorted(directory.glob("*.safetensors"))
    missing = [n for n in ("config.json", "tokenizer.json") if not (directory / n).is_file()]
    missing += [] if weights else ["*.safetensors"]
    if missing:
        raise ConfigError(
            f"{key} must hold {', '.join(missing)}: got {str(directory)!r} without. "
            "Save model and tokenizer there with save_pretrained."
        )
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return ModelFacts(
        num_parameters=sum(_num_parameters(file) for file in weights),
        context_tokens=int(settings.get("max_position_embeddings", 0)),
    )


def _num_parameters(file: Path) -> int:
    """From the header: eight bytes of its length, little-endian, then JSON."""
    with file.open("rb") as data:
        size = int.from_bytes(data.read(8), "little")
        if size > file.stat().st_size:
            raise ConfigError(f"{file} must be safetensors: got a cut file. Copy it again.")
        header = json.loads(data.read(size))
    return sum(math.prod(t["shape"]) for name, t in header.items() if name != "__metadata__")
