"""A causal language model over packed rows: each sample sees itself only.

Logits are made only where a trained token is predicted; at the other places of a row they would be
most of the work and all of it thrown away.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from astra_stream.errors import ConfigError
from astra_stream.training.micro_batches import MicroBatch

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})


class TokenLogprobs(NamedTuple):
    """What the model says of the tokens of some rows; 0 where the mask is false."""

    logprobs: Tensor
    """[B, T] float32 log-probability of each trained token, with gradient."""
    entropy: Tensor
    """[B, T] float32 entropy of the distribution that each was drawn from, without gradient."""


class PackedModel:
    """A Hugging Face model in fp32, without dropout, without a cache."""

    def __init__(self, directory: Path, *, gradient_checkpointing: bool = False) -> None:
        self.model: Any = _load_model(directory)
        _refuse_recurrence(self.model, directory)
        self.window: int | None = sliding_window(self.model.config)
        self.model.config.use_cache = False
        self.model.train(gradient_checkpointing)
        if gradient_checkpointing:
            self.model.activation_checkpointing_enable()
        self._predicting: Tensor | None = None
        # The model's own forward goes from here on with the chosen places only, so that whatever it
        # does to logits after the head (scaling, soft caps) still happens.
        self.model.get_output_embeddings().register_forward_pre_hook(self._choose_places)

    def vocabulary_size(self) -> int:
        """Token ids are below this."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def __call__(self, micro_batch: MicroBatch) -> TokenLogprobs:
        """Log-probabilities of the trained tokens, at each sample's own temperature."""
        places = micro_batch.trained_places
        self._predicting = places - 1
        logits = self.model(
            input_ids=micro_batch.tokens,
            attention_mask=self._attention_mask(micro_batch),
            position_ids=micro_batch.positions,
            use_cache=False,
        ).logits[0]
        scaled = logits.float() / micro_batch.temperatures.flatten()[places, None]
        log_softmax = torch.log_softmax(scaled, dim=-1)
        chosen = log_softmax.gather(1, micro_batch.tokens.flatten()[places, None]).squeeze(1)
        with torch.no_grad():
            entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)
        blank = torch.zeros(micro_batch.tokens.numel())
        shape = micro_batch.tokens.shape
        return TokenLogprobs(
            blank.index_put((places,), chosen).view(shape),
            blank.index_put((places,), entropy).view(shape),
        )

    def _choose_places(self, _head: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        hidden = arguments[0]
        return (hidden.flatten(0, 1)[self._predicting][None],)

    def _attention_mask(self, micro_batch: MicroBatch) -> Tensor | dict[str, Tensor]:
        full = own_sample_mask(micro_batch.sample_ids)
        if self.window is None:
            return full
        distance = micro_batch.positions[:, None, :, None] - micro_batch.positions[:, None, None, :]
        windowed = full & (distance < self.window)
        kinds = set(getattr(self.model.config, "layer_types", None) or ())
        by_kind = {"full_attention": full, "sliding_attention": windowed}
        return {kind: by_kind[kind] for kind in kinds} if kinds else windowed


def own_sample_mask(sample_ids: Tensor) -> Tensor:
    """Causal attention within each sample.

    Args:
        sample_ids: [B, T].

    Returns:
        [B, 1, T, T] bool, true where the query (third axis) may look.
    """
    num_tokens = sample_ids.shape[1]
    causal = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    return (sample_ids[:, None, :, None] == sample_ids[:, None, None, :]) & causal


def sliding_window(config: Any) -> int | None:
    """Tokens that the model's sliding layers see; None where all layers see everything."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None)


def _load_model(directory: Path) -> Any:
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"model must be a directory with a config.json: got {str(directory)!r}. "
            "Name the directory of a Hugging Face model."
        )
    # A service's output is lines for a log; a bar that redraws itself is none.
    disable_progress_bar()
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    for name, value in config.to_dict().items():
        # Dropout would make the ratio at equal weights differ from 1.
        if name.endswith(("dropout", "_pdrop")) and isinstance(value, float):
            setattr(config, name, 0.0)
    try:
        return AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model {str(directory)!r} must load as a causal language model whose attention takes "
            f"a mask: got {reason} Choose another model."
        ) from error


def _refuse_recurrence(model: Any, directory: Path) -> None:
    kinds = set(getattr(model.config, "layer_types", None) or ())
    kinds |= set(getattr(model.config, "layers_block_type", None) or ())
    kinds -= ATTENTION_LAYERS | {"attention"}
    if kinds or getattr(model, "_is_stateful", False):
        raise ConfigError(
            f"model {str(directory)!r} must have attention layers only, because a packed row holds "
            f"several samples: got {sorted(kinds) or 'recurrent layers'}. Choose another model."
        )
