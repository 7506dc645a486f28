"""The one admission gate: prompts and outcomes in, rollout requests out.

It keeps the open groups. A group takes a slot when it is issued and gives it back at its first
trained or dropped outcome. How many may be open is ``AdmissionRule``; after the last step, the last
prompt or too many drops in a row it writes a closing record and is done.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from astra_stream.algorithms.scheduling import AdmissionRule, least_loaded
from astra_stream.log.interface import Message
from astra_stream.log.processor import Effect, Finish, Forget, Incoming, Keep, Write
from astra_stream.records import (
    Outcome,
    PolicyNeed,
    PolicyVersion,
    Prompt,
    RolloutRequest,
    Sampling,
)

SelectPrompts = Callable[[int, int], np.ndarray]
"""(number of prompts, epoch) to [N] indices: the order of an epoch."""

CURSOR = "cursor"
SLOT = "slot/"
ENDS = ("trained", "dropped")
"""Events that give a group's slot back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """What the run file says of scheduling."""

    policy: str
    rule: AdmissionRule
    sampling: Sampling
    """Of training samples; its seed is that of the run."""
    group_size: int
    num_partitions: int
    """Partitions of the requests topic."""
    epochs: int | None = None
    """Passes over the prompts; None for as many as it takes."""
    deadline_s: float = 0.0
    """Seconds an episode may take."""
    max_drops: int
    """Groups dropped without a trained one after which there is no signal."""
    on_no_signal: Literal["stop", "short_batch"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Where the scheduler stands."""

    epoch: int = 0
    index: int = 0
    """Next place in the epoch's order."""
    covers: int = 0
    """Prompts that the epoch was drawn over; 0 before it is drawn."""
    num_issued: int = 0
    steps_done: int = 0
    num_drops: int = 0
    """Drops since a group was last trained."""
    drop_reasons: Mapping[str, int] = field(default_factory=dict)
    """How many of them had which reason."""
    closed: str = ""
    """Why nothing more is issued; empty while it goes on."""


class Scheduler:
    """A processor with one instance: see the module's docstring."""

    name = "scheduler"

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        prompts: Iterable[Prompt],
        select: SelectPrompts,
        requests_topic: str,
        outcomes_topic: str,
    ) -> None:
        self._settings = settings
        self._select = select
        self._requests_topic = requests_topic
        self._outcomes_topic = outcomes_topic
        self._prompts: list[Prompt] = []
        self._known: set[str] = set()
        for prompt in prompts:
            self._add(prompt)
        self._order: np.ndarray | None = None
        self._cursor = self._kept_cursor = Cursor()
        self._slots: dict[str, int] = {}
        self._loads = [0] * settings.num_partitions
        self._running: set[str] = set()

    def restore(self, partition: int, entries: Mapping[str, Any]) -> None:
        """Take over the open groups and the place in the prompts."""
        if CURSOR in entries:
            self._cursor = self._kept_cursor = Cursor(**entries[CURSOR])
        for key, value in entries.items():
            if key.startswith(SLOT):
                place, is_running = value
                self._occupy(key.removeprefix(SLOT), place, is_running=is_running)

    def release(self, partition: int) -> None:
        """Never called: a scheduler shares nothing."""

    def handle(self, incoming: Incoming, now_s: float) -> Iterator[Effect]:
        """Take a prompt into the pool, or an outcome into account."""
        record = incoming.record
        if isinstance(record, Prompt):
            self._add(record)
        elif isinstance(record, Outcome) and record.group_id in self._slots:
            yield from self._take(record)

    def unreadable(self, message: Message, now_s: float) -> Iterator[Effect]:
        """Nothing ends with a prompt; an outcome's group is named by nothing but the outcome."""
        return iter(())

    def tick(self, now_s: float) -> Iterator[Effect]:
        """Issue what there is room for, or close."""
        if not self._cursor.closed:
            yield from self._issue(now_s)
            if reason := self._closing_reason():
                self._cursor = replace(self._cursor, closed=reason)
                yield Write(self._outcomes_topic, self._settings.policy, self._closing(now_s))
        if self._cursor != self._kept_cursor:
            self._kept_cursor = self._cursor
            yield Keep(CURSOR, asdict(self._cursor))
        if self._cursor.closed:
            yield Finish()

    def _add(self, prompt: Prompt) -> None:
        if prompt.split == "train" and prompt.prompt_id not in self._known:
            self._known.add(prompt.prompt_id)
            self._prompts.append(prompt)

    def _take(self, outcome: Outcome) -> Iterator[Effect]:
        key = SLOT + outcome.group_id
        place = self._slots[outcome.group_id]
        if outcome.group_id in self._running:
            self._running.remove(outcome.group_id)
            self._loads[place] -= 1
        if outcome.event not in ENDS:
            yield Keep(key, [place, False])
            return
        del self._slots[outcome.group_id]
        yield Forget(key)
        if outcome.event == "trained":
            steps = max(self._cursor.steps_done, outcome.trained_version + 1)
            self._cursor = replace(self._cursor, steps_done=steps, num_drops=0, drop_reasons={})
        else:
            reasons = Counter(self._cursor.drop_reasons) + Counter([outcome.reason])
            num_drops = self._cursor.num_drops + 1
            self._cursor = replace(self._cursor, num_drops=num_drops, drop_reasons=dict(reasons))

    def _issue(self, now_s: float) -> Iterator[Effect]:
        room = self._settings.rule.room(
            num_open=len(self._slots), steps_done=self._cursor.steps_done
        )
        for _ in range(room):
            prompt = self._next_prompt()
            if prompt is None:
                return
            place = least_loaded(self._loads, turn=self._cursor.num_issued)
            request = self._request(prompt, now_s)
            self._cursor = replace(
                self._cursor,
                index=self._cursor.index + 1,
                num_issued=self._cursor.num_issued + 1,
            )
            self._occupy(request.group_id, place, is_running=True)
            yield Write(
                self._requests_topic,
                request.request_id,
                request,
                partition=place,
                group_id=request.group_id,
            )
            yield Keep(SLOT + request.group_id, [place, True])

    def _occupy(self, group_id: str, place: int, *, is_running: bool) -> None:
        self._slots[group_id] = place
        if is_running:
            self._running.add(group_id)
            self._loads[place] += 1

    def _next_prompt(self) -> Prompt | None:
        if not self._prompts:
            return None
        if self._cursor.covers and self._cursor.index >= self._cursor.covers:
            if self._is_last_epoch():
                return None
            self._cursor = replace(self._cursor, epoch=self._cursor.epoch + 1, index=0, covers=0)
            self._order = None
        if not self._cursor.covers:
            self._cursor = replace(self._cursor, covers=len(self._prompts))
        if self._order is None:
            self._order = self._select(self._cursor.covers, self._cursor.epoch)
        return self._prompts[int(self._order[self._cursor.index])]

    def _is_last_epoch(self) -> bool:
        epochs = self._settings.epochs
        return epochs is not None and self._cursor.epoch + 1 >= epochs

    def _request(self, prompt: Prompt, now_s: float) -> RolloutRequest:
        settings, cursor = self._settings, self._cursor
        group_id = f"{prompt.prompt_id}/{cursor.epoch}"
        need = PolicyNeed(policy=settings.policy, min_version=PolicyVersion(0, cursor.steps_done))
        seed = settings.sampling.seed * 1_000_003 + cursor.num_issued
        return RolloutRequest(
            request_id=f"{group_id}/0/0",
            group_id=group_id,
            prompt=prompt,
            policies=(need,),
            first_sample=0,
            num_samples=settings.group_size,
            group_size=settings.group_size,
            sampling=replace(settings.sampling, seed=seed),
            data_epoch=cursor.epoch,
            issued_at_s=now_s,
            deadline_s=settings.deadline_s,
        )

    def _closing_reason(self) -> str:
        settings, cursor = self._settings, self._cursor
        if cursor.steps_done >= settings.rule.steps:
            return "steps_done"
        if settings.on_no_signal == "stop" and cursor.num_drops > settings.max_drops:
            most = Counter(cursor.drop_reasons).most_common(1)
            return f"no_signal: {most[0][0]}" if most else "no_signal"
        exhausted = cursor.covers and cursor.index >= cursor.covers and self._is_last_epoch()
        return "prompts_exhausted" if exhausted else ""

    def _closing(self, now_s: float) -> Outcome:
        return Outcome(
            group_id="",
            prompt_id="",
            policy=self._settings.policy,
            event="closed",
            stage="scheduler",
            reason=self._cursor.closed,
            num_issued=self._cursor.num_issued,
            at_s=now_s,
        )
