"""What the records of a run add up to; grows by one record at a time, in the order of the log.

Topics become visible in any order: nothing here expects an outcome before its announcement.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from astra_stream.records import Evaluation, Outcome, PolicyVersion, WeightAnnouncement


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A version and the step that made it; number 0 was made by none."""

    version: PolicyVersion
    at_s: float
    """Unix time of the announcement, seconds."""
    num_samples: int
    """Samples trained up to and including this version."""
    num_tokens: int
    """Trained tokens up to and including this version."""
    root_hash: str
    """Root hash of the weights, 64 hex digits."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Diagnostics of the step, name to value."""

    def metric(self, name: str) -> float:
        """A diagnostic; NaN where the step did not report it."""
        return self.metrics.get(name, math.nan)

    @property
    def reward(self) -> float:
        """Mean reward of the samples trained."""
        return self.metric("reward_mean")


@dataclass(slots=True)
class RunState:
    """One policy of a run, as far as its topics were read; ``fold`` changes it in place."""

    versions: dict[int, Step] = field(default_factory=dict)
    """Every version announced, by number, ascending; the newest lineage where there are two."""
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    """By number of the version asked for."""
    events: Counter[str] = field(default_factory=Counter)
    """Outcomes by event."""
    drops: Counter[str] = field(default_factory=Counter)
    """Dropped groups by reason."""
    recent_drops: Counter[str] = field(default_factory=Counter)
    """Groups dropped since the newest version was announced, by reason."""
    staleness: dict[int, Counter[int]] = field(default_factory=dict)
    """Trained groups by staleness, versions, for each version that they made."""
    waiting: set[str] = field(default_factory=set)
    """Groups that are complete and neither trained nor dropped."""
    closed: str = ""
    """Why no further request is issued; empty while requests are issued."""
    num_issued: int | None = None
    """Groups issued in the whole run; None until it is closed."""
    is_final: bool = False
    """No further version will come."""
    last_at_s: float = -math.inf
    """Unix time of the newest record folded, seconds."""

    @property
    def steps(self) -> list[Step]:
        """Versions that a batch made, ascending."""
        return [step for number, step in self.versions.items() if number > 0]

    @property
    def newest(self) -> Step | None:
        """The newest version; None before the first is announced."""
        return next(reversed(self.versions.values()), None)

    @property
    def last_evaluation(self) -> Evaluation | None:
        """The final evaluation, else that of the newest version; None without any."""
        ranked = sorted(self.evaluations.items(), key=lambda item: (item[1].final, item[0]))
        return ranked[-1][1] if ranked else None

    @property
    def is_evaluated(self) -> bool:
        """The final evaluation is there."""
        return any(evaluation.final for evaluation in self.evaluations.values())

    @property
    def all_staleness(self) -> Counter[int]:
        """Trained groups of the whole run by staleness, versions."""
        return sum(self.staleness.values(), Counter())

    @property
    def training_s(self) -> float:
        """Seconds from the first version's announcement to the last's; 0 with fewer than two."""
        times = [step.at_s for step in self.versions.values()]
        return max(times) - min(times) if times else 0.0

    def fold(self, record: Any, *, at_s: float) -> None:
        """Add what a record says.

        Args:
            record: An announcement, an outcome or an evaluation of this policy.
            at_s: Unix time at which the log took it, seconds.
        """
        self.last_at_s = max(self.last_at_s, at_s)
        match record:
            case WeightAnnouncement():
                self._announced(record, at_s)
            case Outcome():
                self._decided(record)
            case Evaluation():
                self.evaluations[record.requested_version.number] = record

    def _announced(self, announcement: WeightAnnouncement, at_s: float) -> None:
        if announcement.kind == "final":
            self.is_final = True
            return
        self.recent_drops.clear()
        version = announcement.version
        known = self.versions.get(version.number)
        if known is not None and not announcement.train_metrics:
            # A lineage opens with the number it stopped at; the step that made it stands.
            reopened = replace(known, version=version, root_hash=announcement.root_hash)
            self.versions[version.number] = reopened
            return
        self.versions[version.number] = Step(
            version=version,
            at_s=at_s,
            num_samples=announcement.num_trained_samples,
            num_tokens=announcement.num_trained_tokens,
            root_hash=announcement.root_hash,
            metrics=dict(announcement.train_metrics),
        )

    def _decided(self, outcome: Outcome) -> None:
        self.events[outcome.event] += 1
        if outcome.event == "closed":
            self.closed = outcome.reason or "closed"
            self.num_issued = outcome.num_issued
        elif outcome.event == "completed":
            self.waiting.add(outcome.group_id)
        else:
            self.waiting.discard(outcome.group_id)
        if outcome.event == "dropped":
            self.drops[outcome.reason] += 1
            self.recent_drops[outcome.reason] += 1
        elif outcome.event == "trained":
            made = self.staleness.setdefault(outcome.trained_version + 1, Counter())
            made[outcome.staleness] += 1
