"""The assembler against sets of groups: asked for, playing, ready, ended.

Every turn is done twice: by an assembler that never ends, and by one that is restarted from its
changelog; both must write the same bytes.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from astra_stream.algorithms.advantage import group_relative
from astra_stream.algorithms.packing import join_slices
from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Message
from astra_stream.log.processor import Incoming, Write, group_of
from astra_stream.processing.assembler import Assembler, AssemblerSettings
from astra_stream.records import (
    Outcome,
    PolicyNeed,
    PolicyVersion,
    RolloutRequest,
    Sampling,
)
from astra_stream.testing.builders import make_group, make_prompt
from astra_stream.testing.driver import Driver, incoming, torn

CODEC = Codec(declared("schemas"))
DEADLINE_S = 10.0
CHOICES = st.integers(0, 99)
Reads = tuple[int, int, int]
"""How many records of each topic a poll hands over."""
READS = st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 4))
READ = st.sampled_from(["now", "now", "after a crash", "after a restart"])
ENDS = st.sampled_from(
    ["played", "played", "played", "dropped", "torn", "torn request", "untrained"]
)


@dataclass
class Model:
    """What is known of every group, from all that was read."""

    asked: set[str] = field(default_factory=set)
    playing_over: set[str] = field(default_factory=set)
    """Groups that came, whole or torn, or were dropped on the way."""
    ready: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    num_issued: int = -1

    @property
    def is_closing(self) -> bool:
        return len(self.asked) == self.num_issued and self.asked <= self.playing_over


class AssemblerMachine(RuleBasedStateMachine):
    """Three topics, each in its own order, read in any order; time passes; the trainer trains."""

    @initialize(
        groups_per_batch=st.integers(1, 3),
        max_staleness=st.integers(0, 2),
        order=st.sampled_from(["edf", "fifo"]),
        on_slow=st.sampled_from(["wait", "expire"]),
        last_batch=st.sampled_from(["train", "drop"]),
        last_end=ENDS,
        last_reads=st.sampled_from([(3, 2, 2), (99, 99, 99)]),
    )
    def begin(self, last_end: str, last_reads: Reads, **fields) -> None:
        self.last_end, self.last_reads = last_end, last_reads
        self.settings = AssemblerSettings(policy="main", row_tokens=16, max_drops=1000, **fields)
        self.steady, self.restarted = Driver(self.make_assembler), Driver(self.make_assembler)
        self.requests: deque[Incoming | Message] = deque()
        self.groups: deque[Incoming | Message] = deque()
        self.outcomes: deque[Incoming | Message] = deque()
        self.issued: list[str] = []
        self.playing: list[str] = []
        self.version: dict[str, int] = {}
        self.until_s: dict[str, float] = {}
        self.model = Model()
        self.num_batches = 0
        self.num_trained = 0
        self.is_over = False
        self.now_s = 0.0

    def make_assembler(self) -> Assembler:
        return Assembler(
            self.settings,
            advantage=group_relative,
            codec=CODEC,
            requests_topic="requests",
            batches_topic="batches",
            outcomes_topic="outcomes",
        )

    @rule(num=st.integers(1, 6), is_evaluation=st.booleans(), reads=READS, when=READ)
    def issue(self, num: int, reads: Reads, when: str, *, is_evaluation: bool) -> None:
        """Requests of evaluations stand in the same topic, and are none of its business."""
        if is_evaluation:
            self.requests.append(incoming(self.request("evaluation/0/p", purpose="evaluate")))
        for _ in range(num):
            group_id = f"g{len(self.issued)}"
            self.issued.append(group_id)
            self.playing.append(group_id)
            self.until_s[group_id] = self.now_s + DEADLINE_S
            self.requests.append(incoming(self.request(group_id)))
        self.read(reads, when)

    def request(self, group_id: str, *, purpose: str = "train") -> RolloutRequest:
        version = PolicyVersion(0, self.num_trained)
        return RolloutRequest(
            request_id=f"{group_id}/0/0",
            group_id=group_id,
            prompt=make_prompt(group_id),
            policies=(PolicyNeed(policy="main", min_version=version),),
            first_sample=0,
            num_samples=2,
            group_size=2,
            sampling=Sampling(max_new_tokens=4),
            issued_at_s=self.now_s,
            deadline_s=DEADLINE_S,
            purpose=purpose,
        )

    @rule(choices=st.lists(CHOICES, min_size=1, max_size=4), how=ENDS, reads=READS, when=READ)
    def play(self, choices: list[int], how: str, reads: Reads, when: str) -> None:
        """Groups end in any order, and are known of before or after their requests are read."""
        for choice in choices[: len(self.playing)]:
            group_id = self.playing.pop(choice % len(self.playing))
            self.version[group_id] = self.num_trained
            if how in ("played", "untrained"):
                reply_tokens = 3 if how == "played" else 0
                versions = (self.num_trained,)
                group = make_group(
                    0, 1, group_id=group_id, versions=versions, reply_tokens=reply_tokens
                )
                self.groups.append(incoming(group, value=CODEC.encode(group), topic="groups"))
            elif how == "torn":
                self.groups.append(torn(group_id=group_id, topic="groups"))
            else:
                if how == "torn request":
                    self.tear_request(group_id)
                self.drop(group_id)
        self.read(reads, when)

    def tear_request(self, group_id: str) -> None:
        """As far as it is unread: nobody can play it, and the worker that is handed it says so."""
        for index, request in enumerate(self.requests):
            if isinstance(request, Incoming) and request.record.group_id == group_id:
                self.until_s[group_id] = math.inf
                self.requests[index] = torn(group_id=group_id, topic="requests")

    def drop(self, group_id: str) -> None:
        self.outcomes.append(
            incoming(
                Outcome(
                    group_id=group_id,
                    prompt_id="p",
                    policy="main",
                    event="dropped",
                    stage="pipeline",
                    reason="drop_uniform",
                )
            )
        )

    @rule(num=st.integers(0, 2), seconds=st.sampled_from([0.0, 1.0, DEADLINE_S]), when=READ)
    def go_on(self, num: int, seconds: float, when: str) -> None:
        """The trainer trains what there is, and time passes."""
        self.num_trained = min(self.num_trained + num, self.num_batches)
        self.now_s += seconds
        self.read((0, 0, 0), when)

    def read(self, reads: Reads, when: str) -> None:
        topics = (self.requests, self.groups, self.outcomes)
        records = [
            topic.popleft()
            for topic, num in zip(topics, reads, strict=True)
            for _ in range(min(num, len(topic)))
        ]
        if when == "after a crash":
            self.restarted.crash(records, now_s=self.now_s)
        if when == "after a restart":
            self.restarted.restart()
        written = self.steady.turn(records, now_s=self.now_s)
        assert in_bytes(self.restarted.turn(records, now_s=self.now_s)) == in_bytes(written)
        assert self.restarted.kept.keys() == self.steady.kept.keys()
        for record in records:
            self.note(record)
        self.check(written)

    def note(self, read: Incoming | Message) -> None:
        model = self.model
        if isinstance(read, Message):
            known = model.asked if read.topic == "requests" else model.playing_over
            known.add(group_of(read))
        elif isinstance(read.record, RolloutRequest):
            if read.record.purpose == "train":
                model.asked.add(read.record.group_id)
        elif isinstance(read.record, Outcome):
            if read.record.event == "closed":
                model.num_issued = read.record.num_issued
            elif read.record.stage != "assembler":
                model.playing_over.add(read.record.group_id)
                model.ended.add(read.record.group_id)
        else:
            model.playing_over.add(read.record.group_id)
            if any(one.trained_tokens for one in read.record.trajectories):
                model.ready.add(read.record.group_id)

    def check(self, written: list[Write]) -> None:
        batches = [write.record for write in written if write.topic == "batches"]
        dropped = [write.record for write in written if write.topic == "outcomes"]
        for outcome in dropped:
            self.check_drop(outcome)
            self.outcomes.append(incoming(outcome))
        for number in sorted({piece.trains_version for piece in batches}):
            assert number == self.num_batches
            self.num_batches += 1
            self.check_batch(join_slices([p for p in batches if p.trains_version == number]))
        model, settings_ = self.model, self.settings
        assert self.steady.is_finished == self.is_over
        assert self.is_over == (model.is_closing and not model.ready)
        # Never stuck: with nothing left to wait for, every whole batch has been written.
        waits_for = {g for g in model.asked - model.playing_over if self.now_s < self.until_s[g]}
        if not self.is_over and not (waits_for and settings_.on_slow == "wait"):
            assert len(model.ready) < settings_.groups_per_batch
        kept = {f"open/{g}" for g in model.asked - model.playing_over}
        kept |= {f"early/{g}" for g in model.playing_over - model.asked}
        kept |= {f"ready/{g}" for g in model.ready}
        assert self.steady.kept.keys() - {"cursor"} == kept

    def end(self, group_id: str) -> None:
        assert group_id not in self.model.ended
        self.model.ended.add(group_id)
        self.model.ready.discard(group_id)

    def check_drop(self, outcome: Outcome) -> None:
        self.end(outcome.group_id)
        assert (outcome.event, outcome.stage) == ("dropped", "assembler")
        if outcome.reason == "expired":
            assert outcome.staleness > self.settings.max_staleness
        elif outcome.reason == "short_remainder":
            assert self.settings.last_batch == "drop"
            assert self.model.is_closing
        else:
            assert outcome.reason in ("dead_letter", "nothing_trains")

    def check_batch(self, batch) -> None:
        assert not self.is_over
        groups = {sample.group_id for sample in batch.samples}
        assert groups <= self.model.ready
        for group_id in groups:
            self.end(group_id)
            staleness = batch.trains_version - self.version[group_id]
            assert 0 <= staleness <= self.settings.max_staleness
        if batch.last:
            self.is_over = True
            assert self.model.is_closing
            assert self.settings.last_batch == "train" or len(groups) in (
                0,
                self.settings.groups_per_batch,
            )
        else:
            assert len(groups) == self.settings.groups_per_batch

    def teardown(self) -> None:
        """The scheduler closes and all that is on its way arrives: everything has ended, once."""
        if not hasattr(self, "model"):
            return
        self.play([0] * len(self.playing), self.last_end, (0, 0, 0), "now")
        closed = Outcome(
            group_id="",
            prompt_id="",
            policy="main",
            event="closed",
            stage="scheduler",
            num_issued=len(self.issued),
        )
        self.outcomes.appendleft(incoming(closed))
        while any((self.requests, self.groups, self.outcomes)):
            self.read(self.last_reads, "after a restart")
        assert self.is_over
        assert self.model.ended == set(self.issued)
        assert self.steady.kept.keys() == {"cursor"}


def in_bytes(written: list[Write]) -> list[tuple[str, str, bytes]]:
    return [(write.topic, write.key, CODEC.encode(write.record)) for write in written]


AssemblerMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=25)
TestAssemblerMachine = AssemblerMachine.TestCase
