"""Scores count each prompt once."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.evaluation.scores import score

REWARDS = st.dictionaries(
    st.text(max_size=3), st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=1, max_size=5
)


def test_a_prompt_with_more_samples_counts_no_more_than_another():
    scores = score({"easy": [1.0, 1.0, 1.0, 1.0], "hard": [0.0]})
    assert scores == (0.5, 0.5, 2)


def test_one_right_sample_passes_a_prompt():
    assert score({"a": [0.0, 1.0], "b": [0.0, 0.5]}).pass_at_k == 0.5


def test_a_lower_bar_can_be_set():
    assert score({"a": [0.5]}, full_reward=0.5).pass_at_k == 1.0


@pytest.mark.parametrize("rewards", [{}, {"a": []}])
def test_nothing_to_score_is_not_a_number(rewards):
    scores = score(rewards)
    assert scores.num_prompts == 0
    assert math.isnan(scores.mean_at_k)
    assert math.isnan(scores.pass_at_k)


def test_a_prompt_without_a_valid_sample_is_left_out():
    assert score({"a": [1.0], "b": []}) == (1.0, 1.0, 1)


@settings(max_examples=30)
@given(REWARDS)
def test_scores_are_shares_and_a_pass_is_worth_at_least_the_mean_of_passes(rewards):
    scores = score(rewards)
    assert 0.0 <= scores.mean_at_k <= 1.0
    assert 0.0 <= scores.pass_at_k <= 1.0
    assert scores.num_prompts == len(rewards)
