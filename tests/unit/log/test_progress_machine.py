"""The offset tracker against a list of records and a set of finished ones."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from astra_stream.log.interface import Committed
from astra_stream.log.progress import METADATA_LIMIT_BYTES, PartitionProgress, decode

CHOICES = st.integers(0, 99)


class ProgressMachine(RuleBasedStateMachine):
    """One partition, read by one owner after another."""

    @initialize(
        start=st.sampled_from([0, 7, 2**40]),
        limit_bytes=st.sampled_from([14, 24, 36, METADATA_LIMIT_BYTES]),
    )
    def begin(self, start: int, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.end = start
        self.records: list[int] = []
        self.finished: set[int] = set()
        self.starts: Counter[int] = Counter()
        self.first_starts_s: dict[int, int] = {}
        self.own(Committed(start))
        self.commit()

    def own(self, committed: Committed) -> None:
        self.progress = PartitionProgress.from_committed(committed)
        self.start = committed.offset
        self.delivered: list[int] = []
        self.started_here: set[int] = set()

    @property
    def in_flight(self) -> list[int]:
        return [offset for offset in self.delivered if offset not in self.finished]

    @property
    def to_come(self) -> list[int]:
        after = self.delivered[-1] if self.delivered else self.start - 1
        return [offset for offset in self.records if offset > after]

    @rule(hole=st.integers(0, 3), num_written=st.integers(0, 4), num_delivered=st.integers(1, 4))
    def deliver(self, hole: int, num_written: int, num_delivered: int) -> None:
        self.end += hole
        self.records += range(self.end, self.end + num_written)
        self.end += num_written
        for offset in self.to_come[:num_delivered]:
            self.progress.delivered(offset)
            self.delivered.append(offset)

    def one_in_flight(self, choice: int) -> int:
        """Every rule finds something to do, or runs would mostly be restarts of nothing."""
        if not self.in_flight:
            self.deliver(hole=choice % 2, num_written=4, num_delivered=4)
        while not self.in_flight:
            self.deliver(hole=0, num_written=1, num_delivered=4)
        return self.in_flight[choice % len(self.in_flight)]

    @rule(choice=CHOICES, at_s=st.integers(0, 2**31))
    def start_one(self, choice: int, at_s: int = 0) -> None:
        offset = self.one_in_flight(choice)
        self.starts[offset] += 1
        self.first_starts_s.setdefault(offset, at_s)
        self.started_here.add(offset)
        assert self.progress.started(offset, at_s=at_s + 0.5) == self.starts[offset]

    @rule(choice=CHOICES)
    def give_back(self, choice: int) -> None:
        if not self.started_here:
            self.start_one(choice)
        offset = sorted(self.started_here)[choice % len(self.started_here)]
        self.take_back(offset)

    def take_back(self, offset: int) -> None:
        self.started_here.discard(offset)
        self.starts[offset] -= 1
        if not self.starts[offset]:
            del self.first_starts_s[offset]
        self.progress.given_back(offset)

    @rule(choices=st.lists(CHOICES, min_size=1, max_size=3))
    def finish(self, choices: list[int]) -> None:
        for choice in choices:
            offset = self.one_in_flight(choice)
            self.finished.add(offset)
            self.started_here.discard(offset)
            del self.starts[offset]
            self.first_starts_s.pop(offset, None)
            self.progress.finished(offset)

    @precondition(lambda self: self.finished)
    @rule()
    def doing_it_again_is_refused(self) -> None:
        for act in (self.progress.finished, self.progress.started, self.progress.given_back):
            with pytest.raises(ValueError, match="must be delivered and unfinished"):
                act(max(self.finished))
        with pytest.raises(ValueError, match="must be at least"):
            self.progress.delivered(self.delivered[-1] if self.delivered else self.start - 1)

    @rule()
    def commit(self) -> None:
        self.committed = self.progress.committed(limit_bytes=self.limit_bytes)
        self.committed_finished = set(self.finished)
        self.committed_starts = +self.starts
        if not self.progress.fits(self.limit_bytes):
            kept, attempts = decode(self.committed)
            assert kept <= self.finished
            assert attempts.items() <= self.starts.items()
            passed = {o for o in self.finished if o < self.committed.offset}
            self.committed_finished = passed | kept
            self.committed_starts = Counter(attempts)
        self.committed_first_starts_s = {
            offset: self.first_starts_s[offset] for offset in self.committed_starts
        }

    @rule(hands_over=st.booleans())
    def change_owner(self, *, hands_over: bool) -> None:
        if hands_over and self.progress.fits(self.limit_bytes):
            for offset in sorted(self.started_here):
                self.take_back(offset)
            self.commit()
        self.finished = set(self.committed_finished)
        self.starts = Counter(self.committed_starts)
        self.first_starts_s = dict(self.committed_first_starts_s)
        self.own(self.committed)

    def starts_of(self, progress: PartitionProgress) -> list[tuple[int, int | None]]:
        return [(progress.num_starts(o), progress.first_start_s(o)) for o in self.records]

    @property
    def counted(self) -> list[tuple[int, int | None]]:
        return [(self.starts[o], self.first_starts_s.get(o)) for o in self.records]

    @invariant()
    def what_is_done_is_what_was_finished(self) -> None:
        assert {o for o in self.records if self.progress.is_done(o)} == self.finished
        assert self.progress.num_in_flight == len(self.in_flight)
        assert self.starts_of(self.progress) == self.counted

    @invariant()
    def the_position_is_past_the_finished_prefix_of_what_was_delivered(self) -> None:
        position = self.start
        for offset in self.delivered:
            if offset not in self.finished:
                break
            position = offset + 1
        assert self.progress.low_water == position

    @invariant()
    def what_fits_is_committed_whole_and_a_restart_loses_none_of_it(self) -> None:
        committed = self.progress.committed(limit_bytes=self.limit_bytes)
        assert len(committed.metadata) <= self.limit_bytes
        assert committed.offset == self.progress.low_water
        if self.progress.fits(self.limit_bytes):
            restored = PartitionProgress.from_committed(committed)
            assert {o for o in self.records if restored.is_done(o)} == self.finished
            assert self.starts_of(restored) == self.counted
            assert restored.committed(limit_bytes=self.limit_bytes) == committed


ProgressMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestProgressMachine = ProgressMachine.TestCase
