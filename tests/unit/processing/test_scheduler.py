"""Where the scheduler puts its requests."""

from collections import deque

import numpy as np
import pytest

from astra_stream.algorithms.scheduling import AdmissionRule, least_loaded
from astra_stream.log.interface import Message
from astra_stream.log.processor import Incoming, Write
from astra_stream.processing.scheduler import Scheduler, SchedulerSettings
from astra_stream.records import Outcome, Sampling
from astra_stream.testing.builders import make_prompt

NUM_PARTITIONS = 32


def make_scheduler(rule: AdmissionRule) -> Scheduler:
    settings = SchedulerSettings(
        policy="main",
        rule=rule,
        sampling=Sampling(max_new_tokens=4),
        group_size=2,
        num_partitions=NUM_PARTITIONS,
        max_drops=100,
    )
    return Scheduler(
        settings,
        prompts=[make_prompt(f"{number} + 1 =") for number in range(50)],
        select=lambda num_prompts, _: np.arange(num_prompts),
        requests_topic="requests",
        outcomes_topic="outcomes",
    )


def issued(effects) -> list[Write]:
    return [e for e in effects if isinstance(e, Write) and e.topic == "requests"]


@pytest.mark.parametrize("num_open", [2, 4, 12, 32])
@pytest.mark.parametrize("share", ["ranges", "in turn"])
def test_two_workers_share_however_few_groups_are_open(num_open, share):
    scheduler = make_scheduler(
        AdmissionRule(groups_per_batch=num_open, max_staleness=0, steps=1000)
    )
    open_groups = deque(issued(scheduler.tick(0.0)))
    places = [write.partition for write in open_groups]
    for number in range(200):
        group_id = open_groups.popleft().record.group_id
        outcome = Outcome(
            group_id=group_id,
            prompt_id="p",
            policy="main",
            event="trained",
            stage="trainer",
            trained_version=number // num_open,
        )
        incoming = Incoming(Message("outcomes", 0, number, None, b"", 0), outcome)
        assert list(scheduler.handle(incoming, 0.0))
        more = issued(scheduler.tick(0.0))
        open_groups.extend(more)
        places += [write.partition for write in more]
    half = NUM_PARTITIONS // 2
    of_first = [place < half if share == "ranges" else place % 2 == 0 for place in places]
    assert sum(of_first) == pytest.approx(len(places) / 2, rel=0.1)
    window = 2 * max(num_open, 4)
    for start in range(0, len(places) - window, window):
        assert 0 < sum(of_first[start : start + window]) < window


def test_a_partition_with_fewer_open_requests_comes_first():
    assert [least_loaded([2, 1, 3], turn=turn) for turn in range(5)] == [1] * 5


def test_equal_partitions_take_turns():
    assert {least_loaded([1, 1, 1, 1], turn=turn) for turn in range(8)} == {0, 1, 2, 3}
