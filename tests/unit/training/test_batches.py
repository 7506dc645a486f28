"""What a trainer checks of a batch, and what it says of it."""

import pytest

from astra_stream.errors import RecordError
from astra_stream.records import PolicyVersion
from astra_stream.testing.builders import make_batch, make_group
from astra_stream.training.batches import require_trainable, trained_outcomes


def batch_of(*, trains_version=3):
    groups = [
        make_group(1, 0, group_id="old", prompt_id="p/0/a", versions=(1,)),
        make_group(
            0, 0, 1, group_id="new", prompt_id="p/1/b", versions=(3,), reply_tokens=(2, 1, 4)
        ),
    ]
    return make_batch(groups, trains_version=trains_version)


def test_the_next_batch_of_fresh_samples_is_trainable():
    require_trainable(batch_of(), PolicyVersion(2, 3), max_staleness=2)


def test_a_batch_for_another_version_is_refused():
    with pytest.raises(RecordError, match="batch 'main/3' must train version 4: got 3"):
        require_trainable(batch_of(), PolicyVersion(0, 4), max_staleness=2)


def test_a_sample_past_the_bound_is_refused_by_name():
    with pytest.raises(RecordError, match="staleness of 'old/0/main' must be 0 to 1: got 2"):
        require_trainable(batch_of(), PolicyVersion(0, 3), max_staleness=1)


def test_each_group_has_one_outcome_with_its_own_facts():
    new, old = trained_outcomes(batch_of(), at_s=9.0)
    assert (new.group_id, old.group_id) == ("new", "old")
    assert (new.prompt_id, old.prompt_id) == ("p/1/b", "p/0/a")
    assert {o.event for o in (new, old)} == {"trained"}
    assert {o.trained_version for o in (new, old)} == {3}
    assert sorted(new.rewards.tolist()) == [0.0, 0.0, 1.0]
    assert (old.staleness, old.min_version, old.max_version) == (2, 1, 1)
    assert (new.staleness, new.min_version, new.max_version) == (0, 3, 3)
    assert new.at_s == 9.0


def test_an_empty_batch_has_no_outcome():
    assert list(trained_outcomes(make_batch([], last=True), at_s=0.0)) == []
