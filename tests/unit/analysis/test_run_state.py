import math
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from astra_stream.analysis import RunState
from astra_stream.records import Outcome


def folded(*records: object) -> RunState:
    state = RunState()
    for second, record in enumerate(records):
        state.fold(record, at_s=float(second))
    return state


def test_version_zero_is_no_step(records: SimpleNamespace) -> None:
    state = folded(records.announce(0), records.announce(1, {"reward_mean": 0.5}))
    assert [step.version.number for step in state.steps] == [1]
    assert state.newest is state.versions[1]
    assert state.steps[0].reward == 0.5


def test_a_step_carries_its_time_and_totals(records: SimpleNamespace) -> None:
    step = folded(records.announce(0), records.announce(1, {"reward_mean": 0.5})).versions[1]
    assert (step.at_s, step.num_samples, step.num_tokens) == (1.0, 8, 100)


def test_a_metric_that_was_not_reported_is_nan(records: SimpleNamespace) -> None:
    assert math.isnan(folded(records.announce(0)).versions[0].metric("entropy"))


def test_an_opened_lineage_keeps_the_step_that_made_the_number(records: SimpleNamespace) -> None:
    state = folded(
        records.announce(0),
        records.announce(1, {"reward_mean": 0.5}),
        records.announce(1, lineage=1),
    )
    assert str(state.versions[1].version) == "v1.1"
    assert state.versions[1].root_hash.startswith(f"{1:032x}")
    assert (state.versions[1].at_s, state.versions[1].reward) == (1.0, 0.5)


def test_final_ends_the_run_and_makes_no_version(records: SimpleNamespace) -> None:
    state = folded(records.announce(0), records.announce(0, kind="final"))
    assert state.is_final
    assert list(state.versions) == [0]


def test_a_group_waits_from_completion_until_it_is_trained_or_dropped(
    records: SimpleNamespace,
) -> None:
    state = folded(*(records.decide("completed", name) for name in "abc"))
    assert state.waiting == {"a", "b", "c"}
    state.fold(records.decide("trained", "a", trained_version=0), at_s=3.0)
    state.fold(records.decide("dropped", "b", reason="expired"), at_s=4.0)
    assert state.waiting == {"c"}


def test_drops_are_counted_by_reason(records: SimpleNamespace) -> None:
    reasons = ("uniform", "uniform", "expired")
    state = folded(*(records.decide("dropped", reason=reason) for reason in reasons))
    assert state.drops == {"uniform": 2, "expired": 1}
    assert state.events["dropped"] == 3


def test_staleness_belongs_to_the_version_that_the_group_made(records: SimpleNamespace) -> None:
    state = folded(
        records.decide("trained", "a", trained_version=4, staleness=2),
        records.decide("trained", "b", trained_version=4, staleness=0),
        records.decide("trained", "c", trained_version=5, staleness=0),
    )
    assert state.staleness == {5: {2: 1, 0: 1}, 6: {0: 1}}
    assert state.all_staleness == {0: 2, 2: 1}


def test_the_closing_record_says_why_and_how_many(records: SimpleNamespace) -> None:
    state = folded(records.close("prompts_exhausted", 40))
    assert (state.closed, state.num_issued) == ("prompts_exhausted", 40)
    assert not state.waiting


def test_the_final_evaluation_replaces_that_of_the_same_version(records: SimpleNamespace) -> None:
    state = folded(
        records.evaluate(0, 0.5),
        records.evaluate(4, 0.8),
        records.evaluate(4, 0.9, final=True),
        records.evaluate(2, 0.7),
    )
    assert state.last_evaluation is not None
    assert state.last_evaluation.mean_at_k == 0.9
    assert state.is_evaluated


def test_training_time_spans_the_versions(records: SimpleNamespace) -> None:
    assert folded().training_s == 0.0
    assert folded(records.announce(0)).training_s == 0.0
    assert records.trained_state(3, step_s=2.0).training_s == 6.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["completed", "trained", "dropped"]), st.sampled_from(["a", "b", "c"])
        )
    )
)
def test_every_outcome_is_counted_once(events: list[tuple[str, str]]) -> None:
    outcomes = [
        Outcome(group_id=group, prompt_id="p", policy="main", event=event, stage="s", reason="r")
        for event, group in events
    ]
    state = folded(*outcomes)
    assert state.events.total() == len(events)
    assert state.drops.total() == state.events["dropped"]
    assert state.all_staleness.total() == state.events["trained"]
    assert len(state.waiting) <= state.events["completed"]
