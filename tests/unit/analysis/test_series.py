import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.analysis.series import (
    moving_mean,
    quantile,
    rates,
    staleness_bins,
    time_bins,
    time_share,
    window_of,
)

COUNTS = st.dictionaries(st.integers(0, 9), st.integers(0, 20), max_size=6)


@given(COUNTS, st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0]))
def test_a_quantile_is_that_of_the_values_spelled_out(counts: dict[int, int], share: float) -> None:
    values = list(Counter(counts).elements())
    if values:
        expected = np.quantile(values, share, method="inverted_cdf")
        assert quantile(counts, share) == expected
    else:
        assert quantile(counts, share) is None


@given(st.lists(st.floats(-5, 5)), st.integers(1, 7))
def test_a_moving_mean_looks_back_only(values: list[float], window: int) -> None:
    expected = [float(np.mean(values[max(0, i - window + 1) : i + 1])) for i in range(len(values))]
    assert moving_mean(values, window) == pytest.approx(expected)


def test_a_moving_mean_leaves_nan_out() -> None:
    means = moving_mean([math.nan, 1.0, math.nan, 3.0], 3)
    assert math.isnan(means[0])
    assert means[1:] == [1.0, 1.0, 2.0]


def test_the_window_follows_the_length_of_the_run() -> None:
    assert [window_of(n) for n in (0, 100, 200, 10_000)] == [5, 5, 10, 50]


def test_rates_count_what_was_trained_within_the_window(records: SimpleNamespace) -> None:
    found = rates(list(records.trained_state(6, step_s=2.0).versions.values()), 3)
    assert len(found) == 6
    assert found[-1].minutes == pytest.approx(0.2)
    assert all(rate.samples == pytest.approx(4.0) for rate in found)
    assert all(rate.tokens == pytest.approx(50.0) for rate in found)


def test_rates_are_left_out_where_no_time_passed(records: SimpleNamespace) -> None:
    assert rates(list(records.trained_state(3, step_s=0.0).versions.values()), 3) == []
    assert rates([], 3) == []


def test_time_that_no_step_accounts_for_is_other(records: SimpleNamespace) -> None:
    state = records.trained_state(4, step_s=2.0)
    shares = time_share(state.steps, 8.0)
    assert shares == pytest.approx(
        {
            "waiting_for_rollouts": 0.5,
            "step": 0.25,
            "export": 0.0,
            "publish_wait": 0.0,
            "other": 0.25,
        }
    )


@given(st.integers(1, 20), st.floats(0.1, 100))
def test_shares_sum_to_one(num_steps: int, elapsed_s: float) -> None:
    steps = [_step(number) for number in range(1, num_steps + 1)]
    assert sum(time_share(steps, elapsed_s).values()) == pytest.approx(1.0)


def test_without_a_step_there_are_no_shares() -> None:
    assert time_share([], 5.0) == {}


@given(st.integers(0, 120), st.integers(1, 50))
def test_bins_hold_every_step_once(num_steps: int, max_bins: int) -> None:
    bins = time_bins([_step(number) for number in range(num_steps + 1)], max_bins)
    held = [number for first, last, _ in bins for number in range(first, last + 1)]
    assert held == list(range(1, num_steps + 1))
    assert len(bins) <= max_bins


@given(st.integers(0, 120), st.integers(1, 50))
def test_staleness_bins_lose_no_group(num_versions: int, max_bins: int) -> None:
    staleness = {number: Counter({number % 3: 2, 0: 1}) for number in range(num_versions)}
    bins = staleness_bins(staleness, max_bins)
    total = sum((counts for _, _, counts in bins), Counter())
    assert total == sum(staleness.values(), Counter())
    assert len(bins) <= max_bins


def _step(number: int) -> object:
    from astra_stream.analysis import Step
    from astra_stream.records import PolicyVersion

    return Step(
        version=PolicyVersion(0, number),
        at_s=float(number),
        num_samples=number,
        num_tokens=number,
        root_hash="",
        metrics={"step_seconds": 0.5, "export_seconds": math.nan},
    )
