"""Scores versions on held-out prompts, through the same rollout workers, while training goes on.

A worker serves the newest version it has, so an evaluation that was asked of version v may be
answered by later ones: the record says which. Evaluations are written in the order in which they
were asked: whoever reads the final one has read them all. A version that proves to be the last one
after it was scored is written again, as final.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from astra_stream.evaluation.scores import score
from astra_stream.log.interface import Message
from astra_stream.log.processor import Effect, Finish, Forget, Incoming, Keep, Write, group_of
from astra_stream.records import (
    Evaluation,
    Outcome,
    PolicyNeed,
    PolicyVersion,
    Prompt,
    RolloutRequest,
    Sampling,
    Trajectory,
    WeightAnnouncement,
)

STATE = "state"
RESULT = "result/"
ASKED = "asked/"
EVALUATION_GROUP = re.compile(r"evaluation/(\d+)/(.+)")
"""Id of an evaluation's group: number of the version, prompt id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSettings:
    """What the run file says of evaluation."""

    policy: str
    every: int
    """Versions from one evaluation to the next; version 0 and the final one are always scored."""
    num_samples: int
    """k, samples per prompt."""
    sampling: Sampling
    num_partitions: int
    """Partitions of the requests topic."""
    deadline_s: float = 0.0
    """Seconds an episode may take; 0 for no limit."""
    suite: str = "held_out"
    max_prompts: int | None = None
    """Prompts scored, the first ones; None for all."""


@dataclass(slots=True)
class Running:
    """An evaluation whose samples are still coming in."""

    version: PolicyVersion
    num_expected: int
    results: dict[str, list[Any]] = field(default_factory=dict)
    """trajectory id, or coordinates of a torn one, to [prompt id, reward, is valid, length, oldest
    version, newest version]."""


class Evaluator:
    """A processor with one instance: requests and scores out.

    In come announcements, trajectories, and the outcomes of requests that nobody could read.
    """

    def __init__(
        self,
        settings: EvaluatorSettings,
        *,
        read_prompts: Callable[[], Sequence[Prompt]],
        requests_topic: str,
        evaluations_topic: str,
    ) -> None:
        self._settings = settings
        self._read_prompts = read_prompts
        self._requests_topic = requests_topic
        self._evaluations_topic = evaluations_topic
        self._running: dict[int, Running] = {}
        self._final: int | None = None
        self._last_asked = -1
        self._is_finished = False
        self._newest: Evaluation | None = None

    @property
    def name(self) -> str:
        """Word for logs, dead letters and the changelog."""
        return f"evaluator.{self._settings.policy}"

    def restore(self, partition: int, entries: Mapping[str, Any]) -> None:
        """Take over evaluations under way."""
        state = {**self._state().value, **entries.get(STATE, {})}
        self._final = state["final"]
        self._last_asked = state["last_asked"]
        self._is_finished = state["is_finished"]
        self._newest = state["newest"] and restored(state["newest"])
        for key, value in entries.items():
            if key.startswith(ASKED):
                version = PolicyVersion(*value[0])
                self._running[version.number] = Running(version, value[1])
        for key, value in entries.items():
            if key.startswith(RESULT):
                number, trajectory_id = key.removeprefix(RESULT).split("/", 1)
                self._running[int(number)].results[trajectory_id] = value

    def release(self, partition: int) -> None:
        """Never called: an evaluator shares nothing."""

    def handle(self, incoming: Incoming, now_s: float) -> Iterator[Effect]:
        """Ask for an evaluation of an announced version, or take a sample of one."""
        record = incoming.record
        if isinstance(record, WeightAnnouncement):
            yield from self._announced(record, now_s)
        elif isinstance(record, Trajectory):
            yield from self._played(record, now_s)
        elif isinstance(record, Outcome) and record.event == "dropped":
            yield from self._dropped(record, now_s)

    def unreadable(self, message: Message, now_s: float) -> Iterator[Effect]:
        """Count a sample that does not decode as one that is not valid."""
        running, prompt_id = self._asked(group_of(message))
        if running is not None:
            invalid = _invalid(prompt_id, running.version)
            yield from self._scored(running, {message.coordinates: invalid}, now_s)

    def tick(self, now_s: float) -> Iterator[Effect]:
        """Finish once the final version is scored."""
        if self._is_finished:
            yield Finish()

    def _announced(self, announcement: WeightAnnouncement, now_s: float) -> Iterator[Effect]:
        number = announcement.version.number
        is_final = announcement.kind == "final"
        if is_final:
            self._final = number
        is_due = is_final or number % self._settings.every == 0
        newest = self._newest
        if is_final and newest is not None and newest.requested_version.number == number:
            yield from self._write(newest)
        elif is_due and number != self._last_asked:
            self._last_asked = number
            yield from self._ask(announcement.version, now_s)
        yield self._state()

    def _ask(self, version: PolicyVersion, now_s: float) -> Iterator[Effect]:
        prompts = self._read_prompts()[: self._settings.max_prompts]
        running = Running(version, len(prompts) * self._settings.num_samples)
        self._running[version.number] = running
        yield Keep(f"{ASKED}{version.number}", [list(version), running.num_expected])
        for index, prompt in enumerate(prompts):
            request = self._request(prompt, version, now_s)
            place = index % self._settings.num_partitions
            yield Write(self._requests_topic, request.request_id, request, partition=place)
        yield from self._complete(now_s)

    def _request(self, prompt: Prompt, version: PolicyVersion, now_s: float) -> RolloutRequest:
        settings = self._settings
        group_id = f"evaluation/{version.number}/{prompt.prompt_id}"
        return RolloutRequest(
            request_id=f"{group_id}/0/0",
            group_id=group_id,
            prompt=prompt,
            policies=(PolicyNeed(policy=settings.policy, min_version=version),),
            first_sample=0,
            num_samples=settings.num_samples,
            group_size=settings.num_samples,
            sampling=settings.sampling,
            issued_at_s=now_s,
            deadline_s=settings.deadline_s,
            purpose="evaluate",
        )

    def _asked(self, group_id: str) -> tuple[Running | None, str]:
        """The evaluation under way that a group is part of, and the group's prompt."""
        found = EVALUATION_GROUP.fullmatch(group_id)
        return (self._running.get(int(found[1])), found[2]) if found else (None, "")

    def _played(self, trajectory: Trajectory, now_s: float) -> Iterator[Effect]:
        running, prompt_id = self._asked(trajectory.group_id)
        if running is None:
            return
        low, high = trajectory.version_range or (running.version, running.version)
        result = [
            prompt_id,
            trajectory.raw_outcome,
            trajectory.reward_valid,
            trajectory.trained_tokens,
            list(low),
            list(high),
        ]
        yield from self._scored(running, {trajectory.trajectory_id: result}, now_s)

    def _dropped(self, outcome: Outcome, now_s: float) -> Iterator[Effect]:
        """Count the samples of a request that does not decode as ones that are not valid."""
        running, prompt_id = self._asked(outcome.group_id)
        if running is not None:
            samples = range(self._settings.num_samples)
            invalid = _invalid(prompt_id, running.version)
            missing = {f"{outcome.group_id}/{i}/{self._settings.policy}": invalid for i in samples}
            yield from self._scored(running, missing, now_s)

    def _scored(
        self, running: Running, results: Mapping[str, list[Any]], now_s: float
    ) -> Iterator[Effect]:
        running.results.update(results)
        for sample, result in results.items():
            yield Keep(f"{RESULT}{running.version.number}/{sample}", result)
        yield from self._complete(now_s)

    def _complete(self, now_s: float) -> Iterator[Effect]:
        """Write what is complete, up to the first evaluation that is not."""
        while self._running:
            number = min(self._running)
            running = self._running[number]
            if len(running.results) < running.num_expected:
                return
            del self._running[number]
            yield Forget(f"{ASKED}{number}")
            for sample in running.results:
                yield Forget(f"{RESULT}{number}/{sample}")
            yield from self._write(summarise(running, self._settings, at_s=now_s))

    def _write(self, evaluation: Evaluation) -> Iterator[Effect]:
        """Write an evaluation; the final one is the last word."""
        self._is_finished = evaluation.requested_version.number == self._final
        self._newest = replace(evaluation, final=self._is_finished)
        yield Write(self._evaluations_topic, self._settings.policy, self._newest)
        yield self._state()

    def _state(self) -> Keep:
        state = {
            "final": self._final,
            "last_asked": self._last_asked,
            "is_finished": self._is_finished,
            "newest": self._newest and asdict(self._newest),
        }
        return Keep(STATE, state)


def _invalid(prompt_id: str, version: PolicyVersion) -> list[Any]:
    """The result of a sample that nobody could read."""
    return [prompt_id, 0.0, False, 0, list(version), list(version)]


def restored(kept: Mapping[str, Any]) -> Evaluation:
    """What ``asdict`` made, after a journey through the changelog."""
    names = ("requested_version", "min_version", "max_version")
    fields: dict[str, Any] = {**kept, **{name: PolicyVersion(*kept[name]) for name in names}}
    return Evaluation(**fields)


def summarise(running: Running, settings: EvaluatorSettings, *, at_s: float) -> Evaluation:
    """The record of a complete evaluation."""
    valid = [r for r in running.results.values() if r[2]]
    rewards: dict[str, list[float]] = {}
    for prompt_id, reward, *_ in valid:
        rewards.setdefault(prompt_id, []).append(reward)
    scores = score(rewards)
    lengths = [r[3] for r in valid]
    return Evaluation(
        policy=settings.policy,
        suite=settings.suite,
        requested_version=running.version,
        min_version=min(versions(valid, 4), default=running.version),
        max_version=max(versions(valid, 5), default=running.version),
        num_prompts=scores.num_prompts,
        num_samples=len(valid),
        k=settings.num_samples,
        mean_at_k=scores.mean_at_k,
        pass_at_k=scores.pass_at_k,
        temperature=settings.sampling.temperature,
        mean_length_tokens=sum(lengths) / len(lengths) if lengths else 0.0,
        num_invalid=len(running.results) - len(valid),
        at_s=at_s,
    )


def versions(results: Iterable[Sequence[Any]], column: int) -> Iterator[PolicyVersion]:
    """The versions in a column of results."""
    return (PolicyVersion(*result[column]) for result in results)
