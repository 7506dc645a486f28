"""What a run that stands still waits for, and who owes it: one line, from its topics alone.

No service is asked, so a worker that is busy and one that is gone look alike: a line says what was
begun and has not ended. Evaluations count where they are all that is left.
"""

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from astra_stream.algorithms.scheduling import AdmissionRule
from astra_stream.analysis.open_work import OpenGroup, OpenWork
from astra_stream.analysis.run_state import RunState
from astra_stream.analysis.wording import counts_text, duration
from astra_stream.errors import TransientError
from astra_stream.records import PolicyVersion

LEAST_S = 30.0
"""No run stands still before it has been silent for so long, seconds."""
USUAL_STEPS = 5
"""Nor before it has been silent for so many of its usual steps."""
STEPS_LOOKED_AT = 20


def patience_s(state: RunState) -> float:
    """How long a run may be silent before it stands still, seconds."""
    times = [step.at_s for step in state.versions.values()][-STEPS_LOOKED_AT:]
    steps = [after - before for before, after in pairwise(times)]
    return max(LEAST_S, USUAL_STEPS * statistics.median(steps) if steps else 0.0)


def waits_for(
    state: RunState,
    work: OpenWork,
    *,
    rule: AdmissionRule,
    is_evaluated: bool,
    now_s: float,
) -> str:
    """Name what comes next in a run, and who owes it.

    Args:
        state: What its topics say of what has ended.
        work: What they say of what has not.
        rule: How many groups may be open, and how many make a batch.
        is_evaluated: Whether the run ends with an evaluation.
        now_s: Unix time, seconds.

    Returns:
        One sentence or two; empty where nothing more is to come.
    """
    newest = state.newest
    if newest is None:
        return "version 0 waits for the trainer: it has announced no weights."
    if state.is_final:
        if not is_evaluated or state.is_evaluated:
            return ""
        return _evaluation(work, newest.version, now_s)
    number = newest.version.number
    if work.has_batch:
        return (
            f"version {number + 1} waits for the trainer: batch {number} is in the log and not "
            "trained."
        )
    text = f"version {number + 1} waits for batch {number}: "
    text += _batch(state, work, rule=rule, now_s=now_s)
    if state.recent_drops:
        text += f" Dropped since version {number}: {counts_text(state.recent_drops)}."
    return text


def _batch(state: RunState, work: OpenWork, *, rule: AdmissionRule, now_s: float) -> str:
    num_ready, groups = len(state.waiting), work.groups
    text = f"the assembler has {num_ready} of {rule.groups_per_batch} groups"
    if groups:
        version = state.newest.version if state.newest else None
        return f"{text}; {_oldest(groups, work, announced=version, now_s=now_s)}"
    if state.closed or num_ready >= rule.groups_per_batch:
        why = f", no more are to come ({state.closed})" if state.closed else ""
        return f"{text}{why}, and has not written it."
    if not state.events and not state.steps:
        return (
            f"{text}, and the scheduler has issued no request. Is it running, and are prompts of "
            "the split train in the log?"
        )
    room = rule.room(num_open=num_ready, steps_done=len(state.steps))
    return f"{text}, and the scheduler issues no request, with room for {room}."


def _evaluation(work: OpenWork, version: PolicyVersion, now_s: float) -> str:
    text = f"the final evaluation, of {version}, waits for"
    missing = [group for group in work.evaluated if not group.is_played]
    if missing:
        return f"{text} samples; {_oldest(missing, work, announced=version, now_s=now_s)}"
    has = "every sample is in the log" if work.evaluated else "it has asked for no sample"
    return f"{text} the evaluator: {has}."


def _oldest(
    groups: Sequence[OpenGroup], work: OpenWork, *, announced: PolicyVersion | None, now_s: float
) -> str:
    oldest = groups[0]
    return (
        f"{_count(len(groups), 'group')} open, the oldest {oldest.group_id}, requested "
        f"{duration(max(0.0, now_s - oldest.asked_at_s))} ago at {oldest.where}: "
        f"{_played(oldest) or _unplayed(oldest, groups, work, announced)}"
    )


def _played(group: OpenGroup) -> str:
    """What a group lacks of which something was played; empty where nothing was."""
    if group.is_played:
        return f"all {group.group_size} samples are in the log, and the pipeline has not decided."
    if group.num_samples:
        samples = f"{group.num_samples} of {group.group_size} samples"
        return f"it is incomplete, with {samples}, the last by worker {group.worker}."
    return ""


def _unplayed(
    group: OpenGroup,
    groups: Sequence[OpenGroup],
    work: OpenWork,
    announced: PolicyVersion | None,
) -> str:
    if group.num_starts:
        times = _count(group.num_starts, "time")
        return f"begun {times} and not ended: a worker plays it, or ended while it did."
    if announced is not None and announced < group.min_version:
        return f"it asks for {group.min_version}, and {announced} is the newest announced."
    if num_begun := sum(other.num_starts > 0 for other in groups):
        return f"no worker has begun it, while {_count(num_begun, 'other')} were begun."
    newest = work.newest_played
    if newest is not None and newest < group.min_version:
        return (
            f"no worker has begun it: it asks for {group.min_version}, and {newest} is the newest "
            "that any worker has played."
        )
    return "no worker has begun any. Is a rollout worker running?"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


class StallWatch:
    """Says, of a run that stands still, what it waits for.

    Args:
        look: Reads what of the run's work is under way; may raise TransientError.
        store_trouble: Says why the store does not answer; empty where it does.
        rule: How many groups may be open, and how many make a batch.
        is_evaluated: Whether the run ends with an evaluation.
        since_s: Unix time before which silence does not count: when the services started.
    """

    def __init__(
        self,
        look: Callable[[RunState], OpenWork],
        store_trouble: Callable[[], str],
        *,
        rule: AdmissionRule,
        is_evaluated: bool,
        since_s: float = 0.0,
    ) -> None:
        self._look = look
        self._store_trouble = store_trouble
        self._rule = rule
        self._is_evaluated = is_evaluated
        self._since_s = since_s
        self._looked_s = 0.0
        self._line = ""

    def line(self, state: RunState, now_s: float) -> str:
        """What the run waits for; empty while it goes on, and after its end.

        It looks when the run begins to stand still, and again each time as much time has passed.

        Args:
            state: What the run's topics say.
            now_s: Unix time, seconds.
        """
        began_s, least_s = max(self._since_s, state.last_at_s), patience_s(state)
        if now_s - began_s < least_s:
            self._line = ""
        elif now_s - max(self._looked_s, began_s) >= least_s:
            self._looked_s = now_s
            what = self._waits_for(state, now_s)
            silence = f"new for {duration(now_s - began_s)}" if began_s else "yet"
            self._line = f"nothing {silence}: {what}" if what else ""
        return self._line

    def _waits_for(self, state: RunState, now_s: float) -> str:
        try:
            work = self._look(state)
        except TransientError as error:
            return f"the log does not answer: {error}"
        text = waits_for(state, work, rule=self._rule, is_evaluated=self._is_evaluated, now_s=now_s)
        trouble = self._store_trouble() if text else ""
        return f"{text} The store does not answer: {trouble}" if trouble else text
