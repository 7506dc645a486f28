"""The scheduler against a list of prompts, the places in it, and a count of what was issued."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from astra_stream.algorithms.scheduling import AdmissionRule, shuffled
from astra_stream.log.processor import Incoming, Write
from astra_stream.processing.scheduler import Scheduler, SchedulerSettings
from astra_stream.records import Outcome, Prompt, Sampling
from astra_stream.testing.builders import make_prompt
from astra_stream.testing.driver import Driver, incoming

SEED = 5
ENDS = st.sampled_from(["trained", "trained", "trained late", "drop_uniform", "expired"])
"""Trained, or the reason of a drop."""
CHOICES = st.integers(0, 99)
SPLITS = st.sampled_from(["train", "train", "held_out"])
READ = st.sampled_from(["later", "now", "now", "now", "after a crash", "after a restart"])


@dataclass
class Model:
    """What a scheduler is to do, from all that it has read."""

    pool: list[str] = field(default_factory=list)
    """Prompts that may be issued, in the order in which they came."""
    order: list[str] = field(default_factory=list)
    """What is left of the epoch."""
    epoch: int = -1
    open: set[str] = field(default_factory=set)
    steps_done: int = 0
    num_issued: int = 0
    drop_reasons: Counter[str] = field(default_factory=Counter)
    """Since the last trained one."""
    closed: str = ""

    def read(self, record: Prompt | Outcome) -> None:
        if isinstance(record, Prompt):
            self.add(record)
        elif record.group_id in self.open:
            self.open.remove(record.group_id)
            if record.event == "trained":
                self.steps_done = max(self.steps_done, record.trained_version + 1)
                self.drop_reasons.clear()
            else:
                self.drop_reasons[record.reason] += 1

    def add(self, prompt: Prompt) -> None:
        if prompt.split == "train" and prompt.prompt_id not in self.pool:
            self.pool.append(prompt.prompt_id)

    def next_groups(self, rule: AdmissionRule, epochs: int | None) -> list[str]:
        ahead = min(rule.max_staleness + 1, rule.steps - self.steps_done)
        groups: list[str] = []
        while self.pool and not self.closed:
            if len(self.open) >= ahead * rule.groups_per_batch:
                break
            if not self.order:
                if self.epoch + 1 == epochs:
                    break
                self.epoch += 1
                places = shuffled(len(self.pool), self.epoch, seed=SEED)
                self.order = [self.pool[place] for place in places]
            groups.append(f"{self.order.pop(0)}/{self.epoch}")
            self.open.add(groups[-1])
            self.num_issued += 1
        return groups

    def close(self, rule: AdmissionRule, epochs: int | None, max_drops: int) -> str:
        """Why it closes now; empty where it does not, or has closed before."""
        if self.closed:
            return ""
        if self.steps_done >= rule.steps:
            self.closed = "steps_done"
        elif self.drop_reasons.total() > max_drops:
            self.closed = f"no_signal: {self.drop_reasons.most_common(1)[0][0]}"
        elif self.epoch >= 0 and not self.order and self.epoch + 1 == epochs:
            self.closed = "prompts_exhausted"
        return self.closed


class SchedulerMachine(RuleBasedStateMachine):
    """Prompts and outcomes arrive, in any order; the scheduler ends and comes back at any point."""

    @initialize(
        groups_per_batch=st.integers(1, 3),
        max_staleness=st.integers(0, 2),
        steps=st.integers(2, 15),
        epochs=st.sampled_from([None, None, 1, 3]),
        max_drops=st.sampled_from([1, 2, 1000]),
        splits=st.lists(SPLITS, min_size=1, max_size=6),
    )
    def begin(
        self,
        groups_per_batch: int,
        max_staleness: int,
        steps: int,
        epochs: int | None,
        max_drops: int,
        splits: list[str],
    ) -> None:
        self.admission = AdmissionRule(
            groups_per_batch=groups_per_batch, max_staleness=max_staleness, steps=steps
        )
        self.epochs, self.max_drops = epochs, max_drops
        self.topic: list[Prompt] = []
        self.unread: list[Incoming] = []
        self.requests: list[Write] = []
        self.reasons: list[str] = []
        self.num_trained = 0
        self.model = Model()
        self.scheduler = Driver(self.make_scheduler)
        self.write_prompts(splits, "now")

    def make_scheduler(self) -> Scheduler:
        """Reads the topic of prompts to its end, whatever of it was read before."""
        for prompt in self.topic:
            self.model.add(prompt)
        return Scheduler(
            SchedulerSettings(
                policy="main",
                rule=self.admission,
                sampling=Sampling(max_new_tokens=4, seed=SEED),
                group_size=2,
                num_partitions=3,
                epochs=self.epochs,
                max_drops=self.max_drops,
            ),
            prompts=self.topic,
            select=lambda num_prompts, epoch: shuffled(num_prompts, epoch, seed=SEED),
            requests_topic="requests",
            outcomes_topic="outcomes",
        )

    @rule(splits=st.lists(SPLITS, min_size=1, max_size=3), read=READ)
    def write_prompts(self, splits: list[str], read: str) -> None:
        for split in splits:
            prompt = make_prompt(f"{len(self.topic)} + 1 =", split=split)
            self.topic.append(prompt)
            self.unread.append(incoming(prompt))
        self.read(read)

    @rule(choices=st.lists(CHOICES, max_size=3), how=ENDS, read=READ)
    def end_groups(self, choices: list[int], how: str, read: str) -> None:
        """Outcomes of a step are read in several polls, so some are of the version before."""
        is_trained = how in ("trained", "trained late")
        if how == "trained" and choices and self.model.open:
            self.num_trained += 1
        version = max(0, self.num_trained - 1 - (how == "trained late")) if is_trained else -1
        for choice in choices:
            self.end(choice, how, trained_version=version)
        self.read(read)

    def end(self, choice: int, how: str, *, trained_version: int) -> None:
        """A group that is open, or one that was among the last."""
        issued = [write.record for write in self.requests]
        groups = [one for one in issued if one.group_id in self.model.open] + issued[-1:]
        if groups:
            request = groups[choice % len(groups)]
            ended = Outcome(
                group_id=request.group_id,
                prompt_id=request.prompt.prompt_id,
                policy="main",
                event="dropped" if trained_version < 0 else "trained",
                stage="somewhere",
                reason=how if trained_version < 0 else "",
                trained_version=trained_version,
            )
            self.unread.append(incoming(ended))

    def read(self, when: str) -> None:
        if when == "later":
            return
        if when == "after a crash":
            self.scheduler.crash(self.unread)
        if when == "after a restart":
            self.scheduler.restart()
        has_closed = bool(self.model.closed)
        for one in self.unread:
            self.model.read(one.record)
        written = self.scheduler.turn(self.unread)
        self.unread.clear()
        self.check_requests([write for write in written if write.topic == "requests"])
        closing = [write.record for write in written if write.topic == "outcomes"]
        reason = self.model.close(self.admission, self.epochs, self.max_drops)
        assert [record.reason for record in closing] == ([reason] if reason else [])
        for record in closing:
            assert (record.event, record.group_id) == ("closed", "")
            assert record.num_issued == self.model.num_issued == len(self.requests)
        assert not (has_closed and written)
        assert self.scheduler.is_finished == bool(self.model.closed)
        self.check_kept()

    def check_requests(self, written: list[Write]) -> None:
        expected = self.model.next_groups(self.admission, self.epochs)
        assert [write.record.group_id for write in written] == expected
        self.requests += written
        for write in written:
            request = write.record
            assert write.key == request.request_id == f"{request.group_id}/0/0"
            assert write.group_id == request.group_id
            assert (request.first_sample, request.num_samples, request.attempt) == (0, 2, 0)
            assert request.policies[0].min_version.number == self.model.steps_done
        issued = [write.record for write in self.requests]
        assert len({request.group_id for request in issued}) == len(issued)
        assert len({request.sampling.seed for request in issued}) == len(issued)

    def check_kept(self) -> None:
        """Nothing is kept of what has ended."""
        slots = {f"slot/{group_id}" for group_id in self.model.open}
        assert self.scheduler.kept.keys() - {"cursor"} == slots


SchedulerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestSchedulerMachine = SchedulerMachine.TestCase
