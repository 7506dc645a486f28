import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.algorithms.advantage import (
    group_relative,
    min_group_size,
    needs_group_of,
    per_sample,
)
from astra_stream.algorithms.packing import trainable_samples
from astra_stream.errors import ConfigError
from astra_stream.testing.builders import make_group, make_segment, make_trajectory

REWARDS = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


@pytest.mark.parametrize(
    ("rewards", "parameters", "expected"),
    [
        ([1, 0, 0, 1], {"ddof": 0, "eps": 0}, [1, -1, -1, 1]),
        ([1, 0, 0, 1], {"eps": 0}, [0.866025404, -0.866025404, -0.866025404, 0.866025404]),
        ([1, 0, 0, 1], {}, [0.866023904, -0.866023904, -0.866023904, 0.866023904]),
        ([1, 0, 0, 1], {"eps": 1e-5}, [0.866010404, -0.866010404, -0.866010404, 0.866010404]),
        ([1] + [0] * 7, {}, [2.474866734] + [-0.353552391] * 7),
        ([1] + [0] * 7, {"ddof": 0, "eps": 0}, [2.645751311] + [-0.377964473] * 7),
        ([0.5, 2, -1, 0.25], {}, [0.050767267, 1.269181675, -1.167647141, -0.152301801]),
        ([0.5, 2, -1, 0.25], {"scale": "none"}, [0.0625, 1.5625, -1.4375, -0.1875]),
    ],
)
def test_group_relative_gives_the_published_numbers(rewards, parameters, expected):
    assert group_relative([make_group(*rewards)], **parameters) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 1], [0.666666667, -0.666666667, -0.666666667, 0.666666667]),
        ([1] + [0] * 7, [1] + [-0.142857143] * 7),
        ([0.5, 2, -1, 0.25], [0.083333333, 2.083333333, -1.916666667, -0.25]),
    ],
)
def test_leave_one_out_gives_the_published_numbers(rewards, expected):
    scored = group_relative([make_group(*rewards)], scale="none", baseline="leave_one_out")
    assert scored == pytest.approx(expected, abs=1e-6)


@settings(max_examples=25)
@given(REWARDS, st.sampled_from(["std", "none"]), st.sampled_from(["mean", "leave_one_out"]))
def test_advantages_of_a_group_sum_to_zero(rewards, scale, baseline):
    scored = group_relative([make_group(*rewards)], scale=scale, baseline=baseline)
    assert scored.sum(dtype=np.float64) == pytest.approx(0, abs=1e-3)


@settings(max_examples=25)
@given(REWARDS)
def test_leave_one_out_is_the_difference_from_the_others(rewards):
    scored = group_relative([make_group(*rewards)], scale="none", baseline="leave_one_out")
    for index, reward in enumerate(rewards):
        others = rewards[:index] + rewards[index + 1 :]
        assert scored[index] == pytest.approx(reward - np.mean(others), abs=1e-4)


def test_a_uniform_group_scores_zero():
    assert group_relative([make_group(1, 1, 1)]).tolist() == [0, 0, 0]


def test_a_single_valid_sample_scores_zero():
    trajectories = [make_trajectory(1), make_trajectory(0, sample_index=1, reward_valid=False)]
    assert group_relative([make_group(trajectories=trajectories)]).tolist() == [0]


def test_groups_follow_one_another():
    scored = group_relative([make_group(1, 0), make_group(5, 5, 2, group_id="g1")], scale="none")
    assert scored.tolist() == [0.5, -0.5, 1, 1, -2]
    assert scored.dtype == np.float32


def test_no_groups_have_no_advantages():
    assert group_relative([]).shape == (0,)
    assert per_sample([], group_relative([])).shape == (0,)


def test_unknown_choices_are_refused():
    with pytest.raises(ConfigError, match="scale must be 'std' or 'none': got 'var'"):
        group_relative([], scale="var")
    with pytest.raises(ConfigError, match="baseline must be 'mean' or 'leave_one_out'"):
        group_relative([], baseline="median")


def test_every_segment_has_the_advantage_of_its_trajectory():
    segments = [make_segment(), make_segment(segment_id=1), make_segment(reply_tokens=0)]
    group = make_group(
        trajectories=[
            make_trajectory(1, sample_index=0, segments=[]),
            make_trajectory(0, sample_index=1, reward_valid=False),
            make_trajectory(0, sample_index=2, segments=segments),
            make_trajectory(0, sample_index=3),
        ]
    )
    advantages = np.array([1, 2, 3], np.float32)
    assert per_sample([group], advantages).tolist() == [2, 2, 3]
    assert len(list(trainable_samples([group]))) == 3


def test_another_number_of_advantages_is_refused():
    with pytest.raises(ConfigError, match="must have 2 entries, one per valid trajectory"):
        per_sample([make_group(1, 0)], np.zeros(3, np.float32))


def test_an_advantage_says_which_groups_it_needs():
    @needs_group_of(4)
    def wants_four(groups):
        return np.zeros(len(groups))

    assert min_group_size(group_relative) == 2
    assert min_group_size(wants_four) == 4
    assert min_group_size(len) == 1
