import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.algorithms.staleness import (
    is_expired,
    oldest_trained_version,
    order_groups,
    staleness,
)
from astra_stream.errors import ConfigError, RecordError
from astra_stream.records import PolicyVersion, VersionSpan
from astra_stream.testing.builders import make_group, make_segment


def test_a_sample_of_the_trained_version_has_no_staleness():
    assert staleness(7, trains_version=7) == 0
    assert staleness(4, trains_version=7) == 3


def test_a_sample_from_the_future_is_refused():
    with pytest.raises(RecordError, match="at most the trained version 7: got 8"):
        staleness(8, trains_version=7)


@settings(max_examples=25)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4))
def test_a_group_expires_once_its_staleness_is_above_the_maximum(made, trains, maximum):
    group = make_group(1, 0, versions=(made,))
    is_old = trains - made > maximum
    assert is_expired(group, trains_version=trains, max_staleness=maximum) == is_old


def test_only_trained_tokens_count_for_age():
    segment = make_segment(prompt_tokens=2, reply_tokens=4, versions=(3, 5))
    assert oldest_trained_version(segment) == 3
    segment.loss_mask[:4] = 0
    assert oldest_trained_version(segment) == 5


def test_a_trained_token_without_version_is_refused():
    segment = make_segment(prompt_tokens=2, reply_tokens=4)
    object.__setattr__(segment, "spans", (VersionSpan(4, 0, 1),))
    with pytest.raises(RecordError, match="must cover every trained token"):
        oldest_trained_version(segment)


def test_the_oldest_group_goes_first_and_ties_keep_their_order():
    made = [(3, "a"), (1, "b"), (3, "c"), (1, "d"), (2, "e")]
    groups = [make_group(1, group_id=name, versions=(version,)) for version, name in made]
    assert [group.group_id for group in order_groups(groups)] == ["b", "d", "e", "a", "c"]
    assert order_groups(groups, order="fifo") == groups


def test_a_function_may_order():
    groups = [make_group(reward, group_id=f"g{reward}") for reward in (2, 3, 1)]
    ordered = order_groups(groups, order=lambda group: -max(group.rewards))
    assert [group.group_id for group in ordered] == ["g3", "g2", "g1"]


def test_an_unknown_order_is_refused():
    with pytest.raises(ConfigError, match="order must be 'edf', 'fifo' or a function: got 'efd'"):
        order_groups([], order="efd")


def test_a_group_without_trained_tokens_keeps_the_version_it_says():
    group = make_group(1, 0, reply_tokens=0, versions=(2,))
    assert group.min_version == PolicyVersion(0, 2)
