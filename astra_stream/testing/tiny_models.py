"""Random models small enough for a unit test, saved as a Hugging Face directory."""

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from astra_stream.testing.builders import VOCABULARY


def save_tiny_model(directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Save a Qwen3 of two layers and width 32 in bf16.

    Args:
        directory: Where; made where it does not exist.
        seed: Of its weights.
        changes: Fields of ``Qwen3Config`` that differ.

    Returns:
        ``directory``.
    """
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**(fields | changes)))
    model.bfloat16().save_pretrained(directory)
    return directory
