import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from astra_stream.errors import ConfigError
from astra_stream.testing.builders import make_batch, make_group
from astra_stream.testing.tiny_models import save_tiny_model
from astra_stream.training.micro_batches import cut_micro_batches
from astra_stream.training.packed_model import PackedModel, own_sample_mask, sliding_window


def test_a_token_sees_its_own_sample_up_to_itself():
    mask = own_sample_mask(torch.tensor([[0, 0, 1, 1, -1]]))[0, 0]
    assert mask.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_a_model_with_recurrent_layers_is_refused(tmp_path):
    MambaForCausalLM(
        MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)
    ).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="whose attention takes a mask: got MambaForCausalLM"):
        PackedModel(tmp_path)


def test_a_model_that_mixes_recurrence_and_attention_is_refused(tmp_path):
    config = Qwen3NextConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        num_experts=0,
    )
    Qwen3NextForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"attention layers only.*\['linear_attention'\]"):
        PackedModel(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path):
    Qwen3Config().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="must load as a causal language model"):
        PackedModel(tmp_path)


def test_layers_with_a_window_see_no_further_in_a_packed_row(tmp_path):
    directory = save_tiny_model(
        tmp_path,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=1,
    )
    batch = make_batch([make_group(1, 0, 1, reply_tokens=(9, 4, 14))], row_tokens=64)
    (micro_batch,) = cut_micro_batches(batch, tokens_per_micro_batch=1000)
    packed = PackedModel(directory)
    assert packed.window == 3
    with torch.no_grad():
        got = packed(micro_batch).logprobs

    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for index in range(3):
        inside = micro_batch.sample_ids == index
        tokens = micro_batch.tokens[inside][None]
        with torch.no_grad():
            wanted = torch.log_softmax(plain(tokens).logits[0, :-1], -1)
        wanted = wanted.gather(1, tokens[0, 1:, None]).squeeze(1).numpy()
        trains = micro_batch.loss_mask[inside][1:].numpy()
        assert np.allclose(got[inside][1:].numpy()[trains], wanted[trains], atol=1e-5)


def test_a_window_counts_only_where_a_layer_has_it():
    assert sliding_window(Qwen3Config(use_sliding_window=False, sliding_window=8)) is None
    config = Qwen3Config(
        use_sliding_window=True, sliding_window=8, num_hidden_layers=2, max_window_layers=1
    )
    assert sliding_window(config) == 8


def test_entropy_is_that_of_the_distribution_drawn_from(tmp_path):
    directory = save_tiny_model(tmp_path, initializer_range=1e-6)
    batch = make_batch([make_group(1, 0, temperature=0.5)], row_tokens=16)
    (micro_batch,) = cut_micro_batches(batch, tokens_per_micro_batch=1000)
    with torch.no_grad():
        said = PackedModel(directory)(micro_batch)
    assert said.entropy[micro_batch.loss_mask].numpy() == pytest.approx(np.log(64), rel=1e-4)
    assert said.logprobs[micro_batch.loss_mask].numpy() == pytest.approx(-np.log(64), rel=1e-3)
    assert (said.entropy[~micro_batch.loss_mask] == 0).all()
