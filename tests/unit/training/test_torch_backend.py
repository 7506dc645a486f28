import dataclasses
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from astra_stream.algorithms.losses import LossOutput, grpo
from astra_stream.algorithms.packing import Batch, unpack
from astra_stream.errors import ConfigError, RecordError
from astra_stream.records.batch import PADDING
from astra_stream.testing.backend_contract import nth_batch, weights_bytes, with_advantages
from astra_stream.testing.builders import make_batch, make_group
from astra_stream.testing.tiny_models import save_tiny_model
from astra_stream.training.torch_backend import TorchBackend


def plain_logprobs(model_directory: Path, tokens: np.ndarray, temperature: float) -> np.ndarray:
    """[T] as an engine reports them: one sequence, no packing; 0 for the first token."""
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32)
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        logits = model(ids).logits[0, :-1] / temperature
    chosen = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).squeeze(1)
    return np.concatenate([[0.0], chosen.numpy()]).astype(np.float32)


def as_sampled_by(model_directory: Path, batch: Batch) -> Batch:
    """The batch with the behavior log-probabilities that this model gives."""
    for index, sample in enumerate(batch.samples):
        one = unpack(batch, index)
        logprobs = plain_logprobs(model_directory, one["tokens"], sample.temperature)
        one["behavior_logprobs"][:] = np.where(one["loss_mask"] == 1, logprobs, 0)
    return batch


def mixed_batch(row_tokens: int = 40) -> Batch:
    groups = [
        make_group(1, 0, 0.5, group_id="a", reply_tokens=(1, 12, 30), prompt_tokens=3),
        make_group(0, 1, group_id="b", reply_tokens=(7, 4), prompt_tokens=9, temperature=0.7),
        make_group(2, 1, 5, group_id="c", reply_tokens=(3, 3, 20), prompt_tokens=1),
    ]
    return make_batch(groups, row_tokens=row_tokens)


def gradients_after(model: Path, batches: list[Batch], **changes) -> tuple[float, dict]:
    """Loss and gradients summed over batches, as a loss that changes no weights sees them."""
    settings = {"loss": partial(grpo, denominator="sequence"), "lr": 0.0, "max_grad_norm": 0}
    backend = TorchBackend(model, **(settings | changes))
    seen: dict[str, torch.Tensor] = {}
    total = 0.0

    def keep(name: str, gradient: torch.Tensor) -> None:
        seen[name] = seen.get(name, 0) + gradient.double()

    for name, parameter in backend._model.model.named_parameters():
        parameter.register_hook(partial(keep, name))
    for batch in batches:
        total += backend.step(batch)["loss"]
    return total, seen


def alone(batch: Batch, index: int) -> Batch:
    """A batch of one sample, of which nothing else is in the row."""
    sample = batch.samples[index]
    arrays = {name: array.copy()[None] for name, array in unpack(batch, index).items()}
    return dataclasses.replace(
        batch,
        num_rows=1,
        row_tokens=sample.length_tokens,
        sample_ids=np.zeros((1, sample.length_tokens), np.int32),
        samples=(dataclasses.replace(sample, row=0, start=0),),
        sample_columns={k: v[index : index + 1] for k, v in batch.sample_columns.items()},
        **arrays,
    )


def test_a_packed_row_has_the_loss_and_gradient_of_its_samples_one_by_one(tiny_model):
    batch = as_sampled_by(tiny_model, mixed_batch())
    singles = [alone(batch, index) for index in range(len(batch.samples))]
    total, wanted = gradients_after(tiny_model, singles)

    loss, got = gradients_after(tiny_model, [batch])

    # Each single divides by its one trajectory, the batch by all.
    assert loss * len(singles) == pytest.approx(total, rel=1e-5, abs=1e-6)
    norm = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    difference = [(wanted[name] - got[name] * len(singles)).norm() for name in wanted]
    assert torch.stack(difference).norm() <= 1e-5 * norm


@pytest.mark.parametrize("denominator", ["token", "sequence", "constant"])
def test_the_loss_does_not_depend_on_the_cut_or_on_the_rows(tiny_model, denominator):
    loss = partial(grpo, denominator=denominator, constant_tokens=16)
    wanted, gradients = gradients_after(tiny_model, [mixed_batch()], loss=loss)
    for row_tokens, tokens_per_micro_batch in ((40, 1), (200, 80), (3000, 16_384)):
        got, others = gradients_after(
            tiny_model,
            [mixed_batch(row_tokens)],
            loss=loss,
            tokens_per_micro_batch=tokens_per_micro_batch,
        )
        assert got == pytest.approx(wanted, rel=1e-5, abs=1e-6)
        for name, gradient in gradients.items():
            assert (others[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-9


def logprobs_seen(model: Path, batch: Batch, **changes) -> list[np.ndarray]:
    """By sample, the log-probabilities of its trained tokens that reach the loss."""
    seen: dict[int, np.ndarray] = {}

    def record(inputs) -> LossOutput:
        for index in torch.unique(inputs.sample_ids[inputs.loss_mask]).tolist():
            chosen = (inputs.sample_ids == index) & inputs.loss_mask
            seen[index] = inputs.current_logprobs[chosen].detach().numpy()
        return grpo(inputs)

    TorchBackend(model, loss=record, lr=0.0, **changes).step(batch)
    return [seen[index] for index in sorted(seen)]


def test_changing_one_sample_leaves_the_log_probabilities_of_others_identical(tiny_model):
    batch, changed = mixed_batch(), mixed_batch()
    tokens = unpack(changed, 4)["tokens"]
    tokens[:] = (tokens + 1) % 64

    before, after = logprobs_seen(tiny_model, batch), logprobs_seen(tiny_model, changed)

    assert not np.array_equal(before[4], after[4])
    for index in set(range(len(before))) - {4}:
        assert np.array_equal(before[index], after[index])


def test_what_stands_at_padding_does_not_matter(tiny_model):
    batch, changed = mixed_batch(), mixed_batch()
    padding = changed.sample_ids == PADDING
    assert padding.any()
    changed.tokens[padding] = 7
    before, after = logprobs_seen(tiny_model, batch), logprobs_seen(tiny_model, changed)
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("row_tokens", [40, 256])
def test_with_lr_zero_every_ratio_is_one(tiny_model, row_tokens):
    batch = as_sampled_by(tiny_model, mixed_batch(row_tokens))
    backend = TorchBackend(tiny_model, loss=grpo, lr=0.0)
    before = weights_bytes(backend.export())
    for _ in range(2):
        diagnostics = backend.step(batch)
        assert diagnostics["ratio_max_abs_log"] <= 1e-5
        assert diagnostics["clip_fraction"] == 0
        assert diagnostics["ess_fraction"] == pytest.approx(1)
        assert diagnostics["ratio_mean"] == pytest.approx(1)
    assert weights_bytes(backend.export()) == before


def test_after_a_step_the_published_weights_are_those_that_the_trainer_computes_with(
    tiny_model, tmp_path
):
    backend = TorchBackend(tiny_model, loss=grpo, lr=1e-2)
    backend.step(mixed_batch())
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    state = {
        n: torch.from_numpy(t).view(torch.bfloat16) for n, t in backend.export().tensors.items()
    }
    model.load_state_dict(state)
    model.save_pretrained(tmp_path / "published")

    batch = as_sampled_by(tmp_path / "published", mixed_batch())

    assert backend.step(batch)["ratio_max_abs_log"] <= 1e-5


def test_checkpointing_activations_changes_no_gradient(tiny_model):
    loss, gradients = gradients_after(tiny_model, [mixed_batch()])
    other_loss, others = gradients_after(tiny_model, [mixed_batch()], gradient_checkpointing=True)
    assert other_loss == loss
    assert all(torch.equal(gradients[name], others[name]) for name in gradients)


def test_steps_too_small_for_bf16_gather_in_the_master_until_they_show(tiny_model):
    backend = TorchBackend(tiny_model, loss=grpo, lr=1e-5)
    start = backend.export().tensors["lm_head.weight"]
    num_changed = []
    for _ in range(15):
        backend.step(nth_batch(0))
        num_changed.append(int((backend.export().tensors["lm_head.weight"] != start).sum()))
    assert num_changed[-1] > 5 * num_changed[0]
    assert num_changed[0] < start.size / 20


def test_the_learning_rate_warms_up(tiny_model):
    backend = TorchBackend(tiny_model, loss=grpo, lr=1e-3, warmup_steps=4)
    rates = [backend.step(nth_batch(0))["learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def test_a_good_answer_becomes_likelier_and_a_bad_one_less_likely(tiny_model):
    for advantage in (1.0, -1.0):
        batch = with_advantages(as_sampled_by(tiny_model, nth_batch(0)), advantage)
        backend = TorchBackend(tiny_model, loss=grpo, lr=1e-3)
        for _ in range(4):
            diagnostics = backend.step(batch)
        assert diagnostics["kl_behavior_k1"] * advantage < -0.01


def test_several_updates_see_the_log_probabilities_from_before_the_first(tiny_model):
    seen = []

    def record(inputs) -> LossOutput:
        seen.append((inputs.proximal_logprobs, inputs.current_logprobs.detach()))
        return grpo(inputs)

    backend = TorchBackend(tiny_model, loss=record, lr=1e-2, updates_per_batch=3)
    seen.clear()
    backend.step(nth_batch(0))

    assert len(seen) == 3
    assert torch.equal(seen[0][0], seen[0][1])
    assert torch.equal(seen[2][0], seen[0][0])
    assert not torch.equal(seen[2][1], seen[0][1])


def test_a_divergence_from_the_reference_grows_from_zero(tiny_model):
    backend = TorchBackend(
        tiny_model,
        loss=partial(grpo, kl_coefficient=0.1),
        lr=1e-2,
        reference_directory=tiny_model,
    )
    first, second = backend.step(nth_batch(0)), backend.step(nth_batch(0))
    assert first["kl_reference"] == pytest.approx(0, abs=1e-9)
    assert second["kl_reference"] > 1e-4


def test_a_loss_that_cannot_be_is_refused_before_the_first_batch(tiny_model):
    with pytest.raises(ConfigError, match="kl_coefficient must be 0 without a reference model"):
        TorchBackend(tiny_model, loss=partial(grpo, kl_coefficient=0.1), lr=1e-3)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("lr", -1.0), ("lr", float("nan")), ("updates_per_batch", 0), ("num_threads", 0)],
)
def test_a_parameter_out_of_range_is_refused(tiny_model, parameter, value):
    with pytest.raises(ConfigError, match=f"{parameter} must be at least"):
        TorchBackend(tiny_model, **({"loss": grpo, "lr": 1e-3} | {parameter: value}))


def test_a_directory_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model must be a directory with a config\.json"):
        TorchBackend(tmp_path / "nothing", loss=grpo, lr=1e-3)


def test_a_later_update_that_is_not_finite_takes_the_earlier_ones_back(tiny_model):
    calls = []

    def breaks_on_the_second_update(inputs) -> LossOutput:
        calls.append(None)
        output = grpo(inputs)
        return dataclasses.replace(output, loss=output.loss * (np.nan if len(calls) == 3 else 1))

    backend = TorchBackend(
        tiny_model, loss=breaks_on_the_second_update, lr=1e-2, updates_per_batch=2
    )
    before = weights_bytes(backend.export())
    with pytest.raises(RecordError, match="the loss of batch 'main/1' must be finite: got nan"):
        backend.step(nth_batch(1))
    assert weights_bytes(backend.export()) == before
    assert backend.step(with_advantages(nth_batch(1), 1.0))["learning_rate"] == 1e-2


def test_tied_tensors_are_exported_once_in_model_order(tmp_path):
    tied = save_tiny_model(tmp_path / "tied", tie_word_embeddings=True)
    weights = TorchBackend(tied, loss=grpo, lr=1e-3).export()
    names = list(weights.tensors)
    assert names[0] == "model.embed_tokens.weight"
    assert "lm_head.weight" not in names
    assert set(weights.dtypes.values()) == {"BF16"}
    assert {tensor.dtype for tensor in weights.tensors.values()} == {np.dtype(np.uint16)}
    assert weights.tensors[names[0]].shape == (64, 32)


def test_exported_bits_are_those_of_the_model_before_any_step(tiny_model):
    weights = TorchBackend(tiny_model, loss=grpo, lr=1e-3).export()
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        bits = parameter.detach().view(torch.uint16).numpy()
        assert np.array_equal(weights.tensors[name], bits)


def test_a_checkpoint_of_another_model_is_refused(tiny_model, tmp_path):
    TorchBackend(tiny_model, loss=grpo, lr=1e-3).save(tmp_path / "checkpoint")
    wider = save_tiny_model(tmp_path / "wider", intermediate_size=96)
    backend = TorchBackend(wider, loss=grpo, lr=1e-3)
    with pytest.raises(ConfigError, match="must have model_fingerprint"):
        backend.restore(tmp_path / "checkpoint")


def test_a_checkpoint_of_another_optimizer_is_refused(tiny_model, tmp_path):
    TorchBackend(tiny_model, loss=grpo, lr=1e-3).save(tmp_path / "checkpoint")
    backend = TorchBackend(tiny_model, loss=grpo, lr=1e-3, betas=(0.9, 0.95))
    with pytest.raises(ConfigError, match=r"must have betas \[0.9, 0.95\]: got \[0.9, 0.999\]"):
        backend.restore(tmp_path / "checkpoint")


def test_saving_again_replaces_the_checkpoint(tiny_model, tmp_path):
    backend = TorchBackend(tiny_model, loss=grpo, lr=1e-2)
    backend.save(tmp_path)
    backend.step(nth_batch(0))
    backend.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "trainer_state-1.safetensors",
        "trainer_state.json",
    ]
    assert json.loads((tmp_path / "trainer_state.json").read_text())["num_updates"] == 1


def test_a_damaged_checkpoint_is_refused(tiny_model, tmp_path):
    backend = TorchBackend(tiny_model, loss=grpo, lr=1e-2)
    backend.save(tmp_path)
    tensors = tmp_path / "trainer_state-0.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(ConfigError, match="must have the hash"):
        backend.restore(tmp_path)


def test_the_fingerprint_tells_models_apart_but_not_weights(tiny_model, tmp_path):
    same = save_tiny_model(tmp_path / "same", seed=1)
    wider = save_tiny_model(tmp_path / "wider", intermediate_size=96)
    prints = [
        TorchBackend(one, loss=grpo, lr=1e-3).fingerprint() for one in (tiny_model, same, wider)
    ]
    assert prints[0] == prints[1] != prints[2]
