"""The admission rule, as the scheduler applies it, against a set of open groups."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from astra_stream.algorithms.scheduling import AdmissionRule, shuffled
from astra_stream.log.processor import Incoming
from astra_stream.processing.scheduler import Scheduler, SchedulerSettings
from astra_stream.records import Outcome, Sampling
from astra_stream.testing.builders import make_prompt
from astra_stream.testing.driver import Driver, incoming

NUM_PROMPTS = 7
STEPS = 5
DROPS = [
    ("rollout", "dead_letter"),
    ("pipeline", "dead_letter"),
    ("pipeline", "too_few_valid"),
    ("pipeline", "drop_uniform"),
    ("assembler", "expired"),
    ("assembler", "short_remainder"),
    ("assembler", "dead_letter"),
]
"""Stage and reason of every way to end without being trained."""
CHOICES = st.integers(0, 99)
READ = st.sampled_from(["later", "now", "now", "after a crash", "after a restart"])
"""When the scheduler reads what has happened. Said with every rule: hypothesis leaves out some."""


def outcome(group_id: str, event: str, *, stage: str = "trainer", **fields) -> Incoming:
    return incoming(
        Outcome(group_id=group_id, prompt_id="p", policy="main", event=event, stage=stage, **fields)
    )


class AdmissionMachine(RuleBasedStateMachine):
    """Groups are issued and end in every way, in any order, some of them twice."""

    @initialize(groups_per_batch=st.integers(1, 3), max_staleness=st.integers(0, 3))
    def begin(self, groups_per_batch: int, max_staleness: int) -> None:
        self.rule = AdmissionRule(
            groups_per_batch=groups_per_batch, max_staleness=max_staleness, steps=STEPS
        )
        self.scheduler = Driver(self.make_scheduler)
        self.open: list[str] = []
        self.ended: list[str] = []
        self.steps_done = 0
        self.unread: list[Incoming] = []
        self.read("now")

    def make_scheduler(self) -> Scheduler:
        return Scheduler(
            SchedulerSettings(
                policy="main",
                rule=self.rule,
                sampling=Sampling(max_new_tokens=4),
                group_size=2,
                num_partitions=3,
                max_drops=10**6,
            ),
            prompts=[make_prompt(f"{number} =") for number in range(NUM_PROMPTS)],
            select=shuffled,
            requests_topic="requests",
            outcomes_topic="outcomes",
        )

    @property
    def bound(self) -> int:
        ahead = min(self.rule.max_staleness + 1, STEPS - self.steps_done)
        return ahead * self.rule.groups_per_batch

    def end(self, choice: int, event: str, **fields) -> None:
        if self.open:
            group_id = self.open.pop(choice % len(self.open))
            self.ended.append(group_id)
            self.unread.append(outcome(group_id, event, **fields))

    @rule(choices=st.lists(CHOICES, min_size=1, max_size=4), is_late=st.booleans(), read=READ)
    def train(self, choices: list[int], read: str, *, is_late: bool) -> None:
        """Outcomes of a step are read in several polls, so some are of the version before."""
        if is_late and self.steps_done > 1:
            version = self.steps_done - 2
        elif self.open and self.steps_done < STEPS - 1:
            version = self.steps_done
            self.steps_done += 1
        else:
            return
        for choice in choices:
            self.end(choice, "trained", trained_version=version)
        self.read(read)

    @rule(choice=CHOICES, how=st.sampled_from(DROPS), read=READ)
    def drop(self, choice: int, how: tuple[str, str], read: str) -> None:
        stage, reason = how
        self.end(choice, "dropped", stage=stage, reason=reason)
        self.read(read)

    @rule(choice=CHOICES, event=st.sampled_from(["trained", "dropped"]), read=READ)
    def end_again(self, choice: int, event: str, read: str) -> None:
        if self.ended:
            group_id = self.ended[choice % len(self.ended)]
            self.unread.append(outcome(group_id, event, trained_version=0))
        self.read(read)

    @rule(choice=CHOICES, event=st.sampled_from(["completed", "replayed"]), read=READ)
    def tell_of_what_ends_nothing(self, choice: int, event: str, read: str) -> None:
        groups = [*self.open, *self.ended[:3], "another"]
        group_id = groups[choice % len(groups)]
        self.unread.append(outcome(group_id, event, stage="pipeline"))
        self.read(read)

    def read(self, when: str) -> None:
        if when == "later":
            return
        if when == "after a crash":
            self.scheduler.crash(self.unread)
        if when == "after a restart":
            self.scheduler.restart()
        issued = self.scheduler.turn(self.unread)
        self.unread.clear()
        for write in issued:
            assert write.topic == "requests"
            assert write.record.group_id not in [*self.open, *self.ended]
            self.open.append(write.record.group_id)
        # No slot is lost, and so it never gets stuck: what has ended has made room.
        assert len(self.open) == max(self.bound, len(self.open) - len(issued))

    @invariant()
    def open_groups_can_be_trained_in_time(self) -> None:
        if hasattr(self, "open"):
            most = (self.rule.max_staleness + 1) * self.rule.groups_per_batch
            assert len(self.open) <= most

    def teardown(self) -> None:
        if hasattr(self, "open"):
            while self.open:
                self.end(0, "dropped", stage="pipeline", reason="drop_uniform")
            self.read("now")
            assert len(self.open) == self.bound > 0


AdmissionMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestAdmissionMachine = AdmissionMachine.TestCase
