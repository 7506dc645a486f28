"""Each thing that a run may wait for, and what is said of it."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from astra_stream.algorithms.scheduling import AdmissionRule
from astra_stream.analysis import RunState
from astra_stream.analysis.open_work import OpenGroup, OpenWork
from astra_stream.analysis.stalls import LEAST_S, StallWatch, patience_s, waits_for
from astra_stream.errors import TransientError
from astra_stream.records import PolicyVersion

RULE = AdmissionRule(groups_per_batch=4, max_staleness=1, steps=100)
NOW_S = 1090.0
ASKED = OpenGroup(
    group_id="sums/7/0",
    purpose="train",
    group_size=4,
    min_version=PolicyVersion(0, 3),
    asked_at_s=1010.0,
    where="sums.requests.main[7]@12",
)
OLDEST = (
    "3 groups open, the oldest sums/7/0, requested 1 min 20 s ago at sums.requests.main[7]@12: "
)


def said(state: RunState, *groups: OpenGroup, is_evaluated: bool = True, **work) -> str:
    work = OpenWork(groups=groups, **work)
    return waits_for(state, work, rule=RULE, is_evaluated=is_evaluated, now_s=NOW_S)


@pytest.fixture
def state(records: SimpleNamespace) -> RunState:
    """Three steps in, with one group that is ready."""
    found = records.trained_state(3)
    found.fold(records.decide("completed", "ready"), at_s=1008.0)
    return found


def test_a_run_without_weights_waits_for_the_trainer() -> None:
    assert said(RunState()) == "version 0 waits for the trainer: it has announced no weights."


def test_a_batch_that_is_not_trained_waits_for_the_trainer(state: RunState) -> None:
    text = "version 4 waits for the trainer: batch 3 is in the log and not trained."
    assert said(state, ASKED, has_batch=True) == text


@pytest.mark.parametrize(
    ("group", "others", "work", "text"),
    [
        (ASKED, 0, {}, "no worker has begun any. Is a rollout worker running?"),
        (ASKED, 2, {}, "no worker has begun it, while 2 others were begun."),
        (
            ASKED,
            0,
            {"newest_played": PolicyVersion(0, 2)},
            "no worker has begun it: it asks for v3, and v2 is the newest that any worker has "
            "played.",
        ),
        (
            replace(ASKED, min_version=PolicyVersion(0, 4)),
            2,
            {},
            "it asks for v4, and v3 is the newest announced.",
        ),
        (
            replace(ASKED, num_starts=1),
            2,
            {},
            "begun 1 time and not ended: a worker plays it, or ended while it did.",
        ),
        (
            replace(ASKED, num_starts=1, num_samples=2, worker="here/1"),
            2,
            {},
            "it is incomplete, with 2 of 4 samples, the last by worker here/1.",
        ),
        (
            replace(ASKED, num_samples=4, worker="here/1"),
            2,
            {},
            "all 4 samples are in the log, and the pipeline has not decided.",
        ),
    ],
    ids=["no worker", "busy", "old weights", "not announced", "begun", "incomplete", "pipeline"],
)
def test_a_batch_waits_for_its_oldest_open_group(
    state: RunState, group: OpenGroup, others: int, work: dict, text: str
) -> None:
    rest = [replace(ASKED, group_id=f"g{i}", num_starts=int(i < others)) for i in range(2)]
    start = "version 4 waits for batch 3: the assembler has 1 of 4 groups; "
    assert said(state, group, *rest, **work) == start + OLDEST + text


def test_drops_since_the_last_version_are_counted(
    state: RunState, records: SimpleNamespace
) -> None:
    for index in range(9):
        reason = "expired" if index == 0 else "drop_uniform"
        state.fold(records.decide("dropped", f"d{index}", reason=reason), at_s=1009.0)
    text = said(state, ASKED)
    assert text.endswith(" Dropped since version 3: 8 drop_uniform, 1 expired.")
    state.fold(records.announce(4, {"reward_mean": 0.0}), at_s=1010.0)
    assert "Dropped" not in said(state, ASKED)


def test_without_prompts_the_scheduler_is_asked_for_them(records: SimpleNamespace) -> None:
    first = records.trained_state(0)
    assert said(first) == (
        "version 1 waits for batch 0: the assembler has 0 of 4 groups, and the scheduler has "
        "issued no request. Is it running, and are prompts of the split train in the log?"
    )


def test_a_scheduler_that_issues_nothing_is_named_with_its_room(state: RunState) -> None:
    assert said(state).endswith(
        "1 of 4 groups, and the scheduler issues no request, with room for 7."
    )


@pytest.mark.parametrize("reason", ["prompts_exhausted", "no_signal: drop_uniform"])
def test_after_the_last_request_the_assembler_owes_the_last_batch(
    state: RunState, records: SimpleNamespace, reason: str
) -> None:
    state.fold(records.close(reason, 20), at_s=1009.0)
    assert said(state) == (
        "version 4 waits for batch 3: the assembler has 1 of 4 groups, no more are to come "
        f"({reason}), and has not written it."
    )


def test_enough_groups_wait_for_the_assembler(state: RunState, records: SimpleNamespace) -> None:
    for index in range(3):
        state.fold(records.decide("completed", f"r{index}"), at_s=1009.0)
    assert said(state).endswith("the assembler has 4 of 4 groups, and has not written it.")


def test_a_final_evaluation_waits_for_its_samples_or_the_evaluator(
    state: RunState, records: SimpleNamespace
) -> None:
    state.fold(records.announce(3, kind="final"), at_s=1011.0)
    start = "the final evaluation, of v3, waits for "
    assert said(state) == f"{start}the evaluator: it has asked for no sample."
    asked = [
        replace(ASKED, purpose="evaluate", num_samples=4 * (index > 2), group_id=f"e{index}")
        for index in range(5)
    ]
    text = said(state, evaluated=asked)
    assert text.startswith(f"{start}samples; 3 groups open, the oldest e0, requested")
    assert text.endswith("no worker has begun any. Is a rollout worker running?")
    assert said(state, evaluated=asked[3:]) == f"{start}the evaluator: every sample is in the log."


def test_a_run_that_is_over_waits_for_nothing(state: RunState, records: SimpleNamespace) -> None:
    state.fold(records.announce(3, kind="final"), at_s=1011.0)
    assert said(state, is_evaluated=False) == ""
    state.fold(records.evaluate(3, 0.5, final=True), at_s=1012.0)
    assert said(state) == ""


def test_patience_is_half_a_minute_or_five_usual_steps(records: SimpleNamespace) -> None:
    assert patience_s(RunState()) == LEAST_S
    assert patience_s(records.trained_state(20, step_s=2.0)) == LEAST_S
    slow = records.trained_state(20, step_s=20.0)
    slow.fold(records.announce(21, {"reward_mean": 0.0}), at_s=5000.0)
    assert patience_s(slow) == 100.0


class Looking:
    """Has no open work, and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.trouble = ""

    def work(self, _state: RunState) -> OpenWork:
        self.calls["work"] += 1
        return OpenWork(has_batch=True)

    def store(self) -> str:
        self.calls["store"] += 1
        return self.trouble

    def watch(self, **options) -> StallWatch:
        return StallWatch(self.work, self.store, rule=RULE, is_evaluated=False, **options)


def test_a_run_that_goes_on_is_not_looked_at(state: RunState) -> None:
    looking = Looking()
    watch = looking.watch()
    assert watch.line(state, state.last_at_s + LEAST_S - 1) == ""
    assert not looking.calls


def test_a_stall_is_looked_at_once_in_a_while_and_ends_with_the_next_record(
    state: RunState, records: SimpleNamespace
) -> None:
    looking, stands_s = Looking(), state.last_at_s + LEAST_S
    watch = looking.watch()
    lines = {watch.line(state, stands_s + second) for second in range(int(LEAST_S))}
    assert lines == {
        "nothing new for 30.0 s: version 4 waits for the trainer: batch 3 is in the log and not "
        "trained."
    }
    assert looking.calls == {"work": 1, "store": 1}
    assert watch.line(state, stands_s + LEAST_S).startswith("nothing new for 1 min 00 s: ")
    state.fold(records.decide("completed", "new"), at_s=stands_s + LEAST_S)
    assert watch.line(state, stands_s + LEAST_S + 1) == ""


def test_silence_before_the_services_started_does_not_count(state: RunState) -> None:
    watch = Looking().watch(since_s=2000.0)
    assert watch.line(state, 2000.0 + LEAST_S - 1) == ""
    assert watch.line(state, 2000.0 + LEAST_S).startswith("nothing new for 30.0 s: ")


def test_of_a_run_without_a_record_nobody_knows_how_long_it_has_been_silent() -> None:
    line = Looking().watch().line(RunState(), NOW_S)
    assert line == "nothing yet: version 0 waits for the trainer: it has announced no weights."


def test_a_store_that_does_not_answer_is_named_beside_what_is_waited_for(state: RunState) -> None:
    looking = Looking()
    looking.trouble = "store s3://a must answer within 5 s: got refused. Check that it runs."
    line = looking.watch().line(state, NOW_S)
    assert line.endswith(
        "batch 3 is in the log and not trained. The store does not answer: store s3://a must "
        "answer within 5 s: got refused. Check that it runs."
    )


def test_a_log_that_does_not_answer_is_named_alone(state: RunState) -> None:
    def unreachable(_state: RunState) -> OpenWork:
        raise TransientError("broker at b:9092 must answer within 30 s: got nothing.")

    watch = StallWatch(unreachable, str, rule=RULE, is_evaluated=False)
    assert watch.line(state, NOW_S) == (
        "nothing new for 1 min 22 s: the log does not answer: broker at b:9092 must answer within "
        "30 s: got nothing."
    )
