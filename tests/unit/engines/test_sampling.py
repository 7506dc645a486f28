"""The draw of one token per row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.engines.sampling import DrawSettings, choose_tokens, draw_uniforms

VOCABULARY = 7


def draw(
    logits: torch.Tensor,
    uniforms: np.ndarray,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    count = len(uniforms)
    return choose_tokens(
        logits.expand(count, -1),
        DrawSettings(
            temperatures=np.full(count, temperature, np.float32),
            top_p=np.full(count, top_p, np.float32),
            top_k=np.full(count, top_k, np.int64),
            uniforms=uniforms,
        ),
    )


def test_uniforms_depend_on_seed_and_stream_alone() -> None:
    first = draw_uniforms(5, 1, 10)
    assert first.dtype == np.float32
    assert draw_uniforms(5, 1, 4).tolist() == first[:4].tolist()
    assert draw_uniforms(5, 2, 10).tolist() != first.tolist()
    assert draw_uniforms(6, 1, 10).tolist() != first.tolist()
    assert draw_uniforms(-1, 2**64 - 1, 3).min() >= 0


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    logits = torch.linspace(-2, 2, VOCABULARY)
    tokens, logprobs = draw(logits, draw_uniforms(0, 0, 20_000), temperature=temperature)
    wanted = torch.softmax(logits / temperature, dim=0).numpy()
    seen = np.bincount(tokens, minlength=VOCABULARY) / len(tokens)
    np.testing.assert_allclose(seen, wanted, atol=0.012)
    np.testing.assert_allclose(logprobs, np.log(wanted)[tokens], atol=1e-5)


def test_temperature_zero_takes_the_largest_logit_and_does_not_divide() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0])
    tokens, logprobs = draw(logits, np.array([0.99, 0.01], np.float32), temperature=0.0)
    assert tokens.tolist() == [1, 1]
    assert logprobs[0] == pytest.approx(float(torch.log_softmax(logits, 0)[1]))


def test_rows_of_one_batch_have_their_own_settings() -> None:
    logits = torch.zeros(3, 4)
    logits[:, 2] = 1.0
    tokens, logprobs = choose_tokens(
        logits,
        DrawSettings(
            temperatures=np.array([0.0, 1.0, 2.0], np.float32),
            top_p=np.array([1.0, 1.0, 1.0], np.float32),
            top_k=np.array([0, 1, 0], np.int64),
            uniforms=np.array([0.0, 0.0, 0.0], np.float32),
        ),
    )
    assert tokens.tolist() == [2, 2, 0]
    wanted = torch.log_softmax(logits / torch.tensor([1.0, 1.0, 2.0])[:, None], dim=-1)
    np.testing.assert_allclose(logprobs, wanted[range(3), tokens].numpy(), atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    scale=st.floats(0.0, 60.0),
    uniform=st.sampled_from([0.0, 0.5, 1 - 2**-24]),
    size=st.integers(1, 400),
    seed=st.integers(0, 1000),
)
def test_no_draw_picks_a_token_without_probability(
    scale: float, uniform: float, size: int, seed: int
) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=size).astype(np.float32))
    tokens, logprobs = draw(logits * scale, np.array([uniform], np.float32))
    assert 0 <= tokens[0] < size
    assert np.isfinite(logprobs[0])
    assert logprobs[0] > -104


@given(
    top_k=st.integers(0, VOCABULARY + 2),
    top_p=st.floats(0.01, 1.0),
    uniform=st.floats(0.0, 1.0, exclude_max=True, width=32),
)
@settings(max_examples=60, deadline=None)
def test_limits_leave_only_the_likeliest(top_k: int, top_p: float, uniform: float) -> None:
    logits = torch.tensor([0.1, 2.0, 1.0, -1.0, 0.5, -3.0, 1.5])
    tokens, logprobs = draw(logits, np.array([uniform], np.float32), top_p=top_p, top_k=top_k)
    full = torch.softmax(logits, dim=0).numpy()
    assert logprobs[0] == pytest.approx(np.log(full[tokens[0]]), abs=1e-5)
    larger = full[full > full[tokens[0]]]
    assert not top_k or len(larger) < top_k
    assert top_p == 1 or not len(larger) or larger.sum() < top_p + 1e-5
