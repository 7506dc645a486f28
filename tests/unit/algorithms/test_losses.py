import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.algorithms.losses import (
    Denominators,
    LossInputs,
    aggregate,
    decoupled_ppo,
    estimate_kl,
    grpo,
)
from astra_stream.errors import ConfigError

SEQUENCES = [[0, 0, 0, 0, 1], [1, 1, 2, 2, -1]]
MASK = [[0, 1, 1, 0, 1], [1, 1, 0, 1, 0]]


def make_inputs(*, seed=0, rows=slice(None), reference=False, **changes) -> LossInputs:
    """2 x 5 places in float64; trajectory 1 has tokens in both rows."""
    rng = np.random.default_rng(seed)
    sequence_ids = torch.tensor(SEQUENCES)
    mask = torch.tensor(MASK).bool()
    counts = torch.bincount(sequence_ids[mask], minlength=3)
    draw = lambda scale=1.0: torch.from_numpy(rng.normal(0, scale, (2, 5)))  # noqa: E731
    behavior = -draw().abs()
    values = {
        "current_logprobs": behavior + draw(0.4),
        "behavior_logprobs": behavior,
        "proximal_logprobs": behavior + draw(0.2),
        "reference_logprobs": behavior + draw(0.3),
        "advantages": torch.tensor([1.5, -0.5, 2.0, 0.0]).double()[sequence_ids],
        "loss_mask": mask,
        "weights": torch.tensor([1.0, 0.5, 2.0, 0.0]).double()[sequence_ids],
        "sample_ids": sequence_ids,
        "sequence_ids": sequence_ids,
        "sequence_tokens": counts[sequence_ids].double(),
    }
    values = {name: tensor[rows].clone() for name, tensor in (values | changes).items()}
    if not reference:
        values["reference_logprobs"] = None
    values["current_logprobs"].requires_grad_()
    return LossInputs(denominators=Denominators(tokens=6, sequences=3), **values)


def numpy_grpo(inputs, *, denominator, kl=0.0, low=0.2, high=0.28, dual=None):
    i = {n: t.detach().numpy() for n in VALUES if (t := getattr(inputs, n)) is not None}
    total = 0.0
    for place in zip(*np.nonzero(i["loss_mask"]), strict=True):
        ratio = np.exp(i["current_logprobs"][place] - i["behavior_logprobs"][place])
        advantage = i["advantages"][place]
        loss = -min(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)
        if dual and advantage < 0:
            loss = min(loss, -dual * advantage)
        if kl:
            d = i["reference_logprobs"][place] - i["current_logprobs"][place]
            loss += kl * (np.exp(d) - d - 1)
        own = i["sequence_tokens"][place]
        total += (
            i["weights"][place]
            * loss
            / {"token": 6, "sequence": 3 * own, "constant": 21}[denominator]
        )
    return total


VALUES = [
    "current_logprobs",
    "behavior_logprobs",
    "reference_logprobs",
    "advantages",
    "loss_mask",
    "weights",
    "sequence_tokens",
]
DENOMINATORS = pytest.mark.parametrize("denominator", ["token", "sequence", "constant"])


@DENOMINATORS
@pytest.mark.parametrize("seed", range(3))
def test_grpo_is_what_ten_lines_of_numpy_say(denominator, seed):
    inputs = make_inputs(seed=seed, reference=True)
    loss = grpo(
        inputs,
        clip_high=0.28,
        denominator=denominator,
        constant_tokens=7,
        kl_coefficient=0.1,
        dual_clip=1.1,
    ).loss
    expected = numpy_grpo(inputs, denominator=denominator, kl=0.1, dual=1.1)
    assert loss.item() == pytest.approx(expected, rel=1e-9)


@DENOMINATORS
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradient_of_grpo_is_its_slope(denominator, estimator):
    def loss_at(current):
        inputs = make_inputs(reference=True, current_logprobs=current)
        output = grpo(
            inputs,
            denominator=denominator,
            constant_tokens=7,
            kl_coefficient=0.1,
            kl_estimator=estimator,
            dual_clip=3.0,
        )
        return inputs.current_logprobs, output.loss

    start = make_inputs(reference=True).current_logprobs.detach()
    leaf, loss = loss_at(start)
    loss.backward()
    for place in np.ndindex(2, 5):
        step = torch.zeros(2, 5).double()
        step[place] = 1e-6
        slope = (loss_at(start + step)[1] - loss_at(start - step)[1]) / 2e-6
        assert leaf.grad[place].item() == pytest.approx(slope.item(), abs=1e-7)


@DENOMINATORS
@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_losses_of_parts_add_up_to_the_loss_of_the_whole(denominator, seed):
    parameters = {"denominator": denominator, "constant_tokens": 7, "kl_coefficient": 0.1}
    whole = grpo(make_inputs(seed=seed, reference=True), **parameters)
    parts = [
        grpo(make_inputs(seed=seed, rows=slice(i, i + 1), reference=True), **parameters)
        for i in range(2)
    ]
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-9)
    for name, value in whole.metrics.items():
        total = sum(part.metrics[name].item() for part in parts)
        assert total == pytest.approx(value.item(), rel=1e-9)


def one_row(**values) -> LossInputs:
    tensors = {name: torch.tensor([value], dtype=torch.float64) for name, value in values.items()}
    num_tokens = len(values["advantages"])
    ids = torch.zeros(1, num_tokens, dtype=torch.int64)
    return LossInputs(
        loss_mask=torch.ones(1, num_tokens, dtype=torch.bool),
        weights=torch.ones(1, num_tokens),
        sample_ids=ids,
        sequence_ids=ids,
        sequence_tokens=torch.full((1, num_tokens), float(num_tokens)),
        denominators=Denominators(tokens=num_tokens, sequences=1),
        **tensors,
    )


def published_example() -> LossInputs:
    return one_row(
        current_logprobs=[-0.5, -2.4, -0.8],
        behavior_logprobs=[-1.0, -2.0, -0.5],
        proximal_logprobs=[-0.9, -2.5, -0.4],
        advantages=[1.0, 1.0, -1.0],
    )


def test_grpo_is_coupled_ppo_on_the_published_example():
    assert grpo(published_example()).loss.item() == pytest.approx(-0.356773349, abs=1e-6)


def test_decoupled_ppo_gives_the_published_numbers():
    inputs = published_example()
    assert decoupled_ppo(inputs).loss.item() == pytest.approx(-0.370796138, abs=1e-6)
    bounded = decoupled_ppo(inputs, max_behavior_weight=1.05)
    assert bounded.loss.item() == pytest.approx(-0.363440015, abs=1e-6)


def test_decoupled_ppo_without_proximal_is_weighed_policy_gradient():
    inputs = one_row(
        current_logprobs=[-0.5, -2.0], behavior_logprobs=[-1.0, -2.0], advantages=[1.0, -1.0]
    )
    output = decoupled_ppo(inputs)
    assert output.loss.item() == pytest.approx((-np.exp(0.5) + 1) / 2)
    assert output.metrics["ratio_mean"].item() == 2
    assert output.metrics["clip_fraction"].item() == 0


def test_a_wider_upper_clip_lets_good_tokens_go_further():
    inputs = one_row(current_logprobs=[-0.75], behavior_logprobs=[-1.0], advantages=[1.0])
    assert grpo(inputs).metrics["clip_fraction"].item() == 1
    wider = grpo(inputs, clip_high=0.3)
    assert wider.metrics["clip_fraction"].item() == 0
    assert wider.loss.item() == pytest.approx(-np.exp(0.25))


def test_dual_clip_bounds_the_loss_of_bad_samples_only():
    inputs = one_row(
        current_logprobs=[0.0, 0.0], behavior_logprobs=[-3.0, -3.0], advantages=[1.0, -1.0]
    )
    unbounded, bounded = grpo(inputs), grpo(inputs, dual_clip=3.0)
    assert unbounded.loss.item() == pytest.approx((-1.2 + np.exp(3)) / 2)
    assert bounded.loss.item() == pytest.approx((-1.2 + 3) / 2)
    assert bounded.metrics["clip_fraction"].item() == 2


@given(st.floats(-3, 0), st.floats(-3, 0))
def test_estimates_of_the_divergence_agree_to_second_order(logprob, other):
    policy, reference = torch.tensor(logprob).double(), torch.tensor(other).double()
    k1, k2, k3 = (estimate_kl(policy, reference, estimator=k).item() for k in ("k1", "k2", "k3"))
    assert k1 == pytest.approx(logprob - other)
    assert k3 >= 0
    assert k3 == pytest.approx(k2, abs=abs(k1) ** 3 * np.exp(abs(k1)))


def test_what_stands_where_the_mask_is_zero_does_not_matter():
    clean = make_inputs()
    broken = clean.behavior_logprobs.masked_fill(~clean.loss_mask, float("nan"))
    assert grpo(make_inputs(behavior_logprobs=broken)).loss.item() == grpo(clean).loss.item()


def test_equal_policies_have_ratio_one():
    behavior = make_inputs().behavior_logprobs
    output = grpo(make_inputs(current_logprobs=behavior))
    assert output.metrics["ratio_mean"].item() == 6
    assert output.metrics["clip_fraction"].item() == 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"clip_low": 1.5}, "clip_low must be from 0 to 1: got 1.5"),
        ({"clip_high": -0.1}, "clip_high must be at least 0: got -0.1"),
        ({"dual_clip": 1.0}, "dual_clip must be above 1: got 1.0"),
        ({"denominator": "mean"}, "denominator must be 'token', 'sequence' or 'constant'"),
        ({"denominator": "constant"}, "constant_tokens must be at least 1"),
        ({"kl_coefficient": 0.1}, "kl_coefficient must be 0 without a reference model"),
    ],
)
def test_parameters_that_cannot_be_are_refused(parameters, message):
    with pytest.raises(ConfigError, match=message):
        grpo(make_inputs(), **parameters)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ConfigError, match="kl_estimator must be 'k1', 'k2' or 'k3': got 'k4'"):
        grpo(make_inputs(reference=True), kl_coefficient=0.1, kl_estimator="k4")


def test_a_batch_without_trained_tokens_has_loss_zero():
    inputs = make_inputs(loss_mask=torch.zeros(2, 5, dtype=torch.bool))
    assert aggregate(inputs.current_logprobs, inputs).item() == 0
