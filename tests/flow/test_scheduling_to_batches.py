"""Scheduler, pipeline and assembler on the memory log; a test plays the worker and the trainer."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from astra_stream.algorithms.advantage import group_relative
from astra_stream.algorithms.packing import join_slices
from astra_stream.algorithms.scheduling import AdmissionRule, shuffled
from astra_stream.algorithms.selection import drop_uniform_groups
from astra_stream.clock import FixedClock
from astra_stream.declarations import declared
from astra_stream.errors import RecordError
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.log.processor import Processor, Write
from astra_stream.processing.assembler import Assembler, AssemblerSettings
from astra_stream.processing.pipeline import DeadLetters, Pipeline, Stage, StageError
from astra_stream.processing.scheduler import Scheduler, SchedulerSettings
from astra_stream.processing.service import ProcessorService, RunningProcessor
from astra_stream.records import (
    Group,
    Outcome,
    PolicyVersion,
    Prompt,
    RolloutRequest,
    Sampling,
    Trajectory,
)
from astra_stream.rollout.refusals import unreadable
from astra_stream.rollout.settings import WorkerSettings
from astra_stream.testing.builders import make_prompt, make_trajectory
from astra_stream.training.batches import require_trainable, trained_outcomes

CODEC = Codec(declared("schemas"))
TOPICS = TopicNames("t")
POLICY = "main"
GROUP_SIZE = 4
ROW_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Drops:
    """How often a group is lost at each place where one may be; shares of groups, or of samples."""

    uniform: float = 0.3
    """Groups that the pipeline drops."""
    torn_request: float = 0.0
    torn_sample: float = 0.0
    torn_group: float = 0.0
    failed: float = 0.0
    """Samples whose episode fails."""
    given_up: float = 0.0
    """Requests past their delivery limit or deadline: every sample fails, without a token."""
    untrained: float = 0.0
    """Groups of which no token trains."""
    too_long: float = 0.0
    """Samples that do not fit into a row."""
    slow: float = 0.0
    """Groups that are written late, so that they may expire."""


class TearingCodec(Codec):
    """Writes half of some records."""

    def __init__(self, rng: np.random.Generator, shares: dict[type, float]) -> None:
        super().__init__(declared("schemas"))
        self._rng = rng
        self._shares = shares

    def encode(self, record):
        value = super().encode(record)
        is_torn = self._rng.random() < self._shares.get(type(record), 0.0)
        return value[: len(value) // 2] if is_torn else value


WORKER = WorkerSettings(
    policy=POLICY,
    requests_topic=TOPICS.requests(),
    trajectories_topic=TOPICS.trajectories(POLICY),
    evaluation_trajectories_topic=TOPICS.evaluation_trajectories(POLICY),
    outcomes_topic=TOPICS.outcomes,
    dead_letters_topic=TOPICS.dead_letters,
    weights_topic=TOPICS.weights(POLICY),
    closes_on_topic=TOPICS.weights(POLICY),
    group=TOPICS.group("rollout", "main"),
)


@dataclass
class Loop:
    """The three processors, and the two ends that a test plays."""

    log: MemoryLog
    running: dict[str, RunningProcessor]
    rng: np.random.Generator
    codec: Codec
    drops: Drops
    max_staleness: int
    version: int = 0
    unplayed: list[RolloutRequest] = field(default_factory=list)
    late: list[list[Trajectory]] = field(default_factory=list)
    """Groups that are played and not written."""
    is_done: set[str] = field(default_factory=set)
    most_open: int = 0

    def __post_init__(self) -> None:
        self.worker, self.trainer = self.log.writer("worker"), self.log.writer("trainer")
        self.requests = self.log.assign([TOPICS.requests()])
        self.batches = self.log.assign([TOPICS.batches(POLICY)])

    def turn_one_of(self, names: Sequence[str]) -> bool:
        """Turn a processor, the worker or the trainer; say whether the last batch is trained."""
        choice = int(self.rng.integers(len(names) + 2))
        if choice < len(names):
            self.turn(names[choice])
        elif choice == len(names):
            self.play()
        else:
            return self.train()
        if self.rng.random() < 0.05:
            self.most_open = max(self.most_open, count_open(self.log))
        return False

    def turn(self, name: str) -> None:
        if name not in self.is_done and not self.running[name].turn(0.0):
            self.is_done.add(name)

    def play(self) -> None:
        for message in self.requests.poll(0.0):
            try:
                self.unplayed.append(CODEC.decode(message.value))
            except RecordError as error:
                self.write(unreadable(message, error, WORKER, now_s=0.0))
        ready = [r for r in self.unplayed if r.policies[0].min_version.number <= self.version]
        if ready:
            request = ready[int(self.rng.integers(len(ready)))]
            self.unplayed.remove(request)
            self.late.append(list(self.samples(request)))
        if self.late and not self.happens(self.drops.slow):
            group = self.late.pop(int(self.rng.integers(len(self.late))))
            topic = TOPICS.trajectories(POLICY)
            self.write(Write(topic, t.prompt_id, t, group_id=t.group_id) for t in group)

    def samples(self, request: RolloutRequest) -> Iterator[Trajectory]:
        """What the worker makes of a request."""
        drops = self.drops
        is_uniform, is_given_up = self.happens(drops.uniform), self.happens(drops.given_up)
        reply_tokens = 0 if self.happens(drops.untrained) else 3
        for index in range(request.num_samples):
            is_failed = is_given_up or self.happens(drops.failed)
            yield make_trajectory(
                1.0 if is_uniform else float(index % 2),
                group_id=request.group_id,
                sample_index=index,
                group_size=request.group_size,
                prompt_id=request.prompt.prompt_id,
                versions=(self.version,),
                reply_tokens=ROW_TOKENS if self.happens(drops.too_long) else reply_tokens,
                segments=() if is_given_up else None,
                reward_valid=not is_failed,
                status="error" if is_failed else "done",
            )

    def happens(self, share: float) -> bool:
        return self.rng.random() < share

    def write(self, writes: Iterable[Write]) -> None:
        with self.worker.transaction() as txn:
            for one in writes:
                value = self.codec.encode(one.record)
                txn.write(one.topic, one.key.encode(), value, headers=one.headers)

    def train(self) -> bool:
        """Train one batch; say whether it was the last."""
        messages = self.batches.poll(0.0, max_messages=1)
        if not messages:
            return False
        batch = join_slices([CODEC.decode(messages[0].value)])
        if batch.samples:
            version = PolicyVersion(0, self.version)
            require_trainable(batch, version, max_staleness=self.max_staleness)
            self.version += 1
            with self.trainer.transaction() as txn:
                for outcome in trained_outcomes(batch, at_s=0.0):
                    key = outcome.prompt_id.encode()
                    txn.write(TOPICS.outcomes, key, CODEC.encode(outcome))
        return batch.last


def service(
    log: MemoryLog,
    role: str,
    inputs: list[str],
    *,
    is_singleton: bool = True,
    codec: Codec = CODEC,
):
    group = TOPICS.group(role)
    return ProcessorService(
        log=log,
        codec=codec,
        clock=FixedClock(),
        group=group,
        inputs=inputs,
        changelog_topic=TOPICS.changelog(group, "state"),
        letters=DeadLetters(TOPICS.dead_letters, role),
        is_singleton=is_singleton,
    )


def make_log(num_prompts: int) -> MemoryLog:
    partitions = {
        TOPICS.prompts: 1,
        TOPICS.requests(): 4,
        TOPICS.trajectories(POLICY): 2,
        TOPICS.groups(POLICY): 2,
        TOPICS.batches(POLICY): 1,
        TOPICS.outcomes: 2,
        TOPICS.dead_letters: 1,
    }
    for role in ("scheduler", "pipeline", "assembler"):
        partitions[TOPICS.changelog(TOPICS.group(role), "state")] = 2
    log = MemoryLog(partitions)
    with log.writer("prompts").transaction() as txn:
        for index in range(num_prompts):
            prompt = make_prompt(f"{index} + 1 =")
            txn.write(TOPICS.prompts, prompt.prompt_id.encode(), CODEC.encode(prompt))
    return log


def make_scheduler(
    log: MemoryLog, rule: AdmissionRule, *, epochs: int | None = None, max_drops: int = 1000
):
    return Scheduler(
        SchedulerSettings(
            policy=POLICY,
            rule=rule,
            sampling=Sampling(max_new_tokens=4),
            group_size=GROUP_SIZE,
            num_partitions=4,
            epochs=epochs,
            max_drops=max_drops,
        ),
        prompts=[CODEC.decode(m.value) for m in log.records(TOPICS.prompts)],
        select=shuffled,
        requests_topic=TOPICS.requests(),
        outcomes_topic=TOPICS.outcomes,
    )


def make_assembler(rule: AdmissionRule, *, last_batch="train", on_slow="wait"):
    return Assembler(
        AssemblerSettings(
            policy=POLICY,
            groups_per_batch=rule.groups_per_batch,
            max_staleness=rule.max_staleness,
            row_tokens=ROW_TOKENS,
            last_batch=last_batch,
            on_slow=on_slow,
            max_drops=1000,
        ),
        advantage=group_relative,
        codec=CODEC,
        requests_topic=TOPICS.requests(),
        batches_topic=TOPICS.batches(POLICY),
        outcomes_topic=TOPICS.outcomes,
    )


def make_pipeline():
    return Pipeline(
        [Stage(name="drop_uniform", function=drop_uniform_groups)],
        policy=POLICY,
        groups_topic=TOPICS.groups(POLICY),
        outcomes_topic=TOPICS.outcomes,
        letters=DeadLetters(TOPICS.dead_letters, "pipeline"),
        codec=CODEC,
    )


@dataclass
class Services:
    """The three processors, each of which a test may end and start again."""

    log: MemoryLog
    makers: dict[str, Callable[[], tuple[ProcessorService, Processor]]]
    running: dict[str, RunningProcessor] = field(default_factory=dict)
    closing: dict[str, ExitStack] = field(default_factory=dict)

    def start(self, name: str) -> None:
        made, processor = self.makers[name]()
        self.closing[name] = ExitStack()
        self.running[name] = self.closing[name].enter_context(made.started(processor))

    def restart(self, name: str) -> None:
        self.closing[name].close()
        self.start(name)

    def close(self) -> None:
        for stack in self.closing.values():
            stack.close()


def make_services(
    log: MemoryLog, rule: AdmissionRule, *, codec: Codec = CODEC, on_slow="wait", **scheduler
) -> Services:
    played = [TOPICS.trajectories(POLICY)]
    assembled = [TOPICS.requests(), TOPICS.groups(POLICY), TOPICS.outcomes]
    makers = {
        "scheduler": lambda: (
            service(log, "scheduler", [TOPICS.prompts, TOPICS.outcomes], codec=codec),
            make_scheduler(log, rule, **scheduler),
        ),
        "pipeline": lambda: (
            service(log, "pipeline", played, is_singleton=False, codec=codec),
            make_pipeline(),
        ),
        "assembler": lambda: (
            service(log, "assembler", assembled, codec=codec),
            make_assembler(rule, on_slow=on_slow),
        ),
    }
    services = Services(log, makers)
    for name in makers:
        services.start(name)
    return services


def run_loop(
    rule: AdmissionRule,
    *,
    seed: int,
    drops: Drops = Drops(),
    num_prompts: int = 40,
    restart_every: int = 0,
    **options,
) -> tuple[MemoryLog, Loop]:
    """Turn services in random order until the last batch; restart one now and then."""
    log = make_log(num_prompts)
    rng = np.random.default_rng(seed)
    shares = {
        RolloutRequest: drops.torn_request,
        Trajectory: drops.torn_sample,
        Group: drops.torn_group,
    }
    codec = TearingCodec(rng, shares)
    services = make_services(log, rule, codec=codec, **options)
    names = list(services.makers)
    loop = Loop(log, services.running, rng, codec, drops, rule.max_staleness)
    for turn in range(20_000):
        if restart_every and turn % restart_every == restart_every - 1:
            services.restart(names[int(rng.integers(3))])
        if loop.turn_one_of(names):
            break
    else:
        pytest.fail(f"the loop must end: got stuck at version {loop.version}")
    for name in names:
        loop.turn(name)
    services.close()
    return log, loop


def issued(log: MemoryLog) -> Iterator[RolloutRequest]:
    return (CODEC.decode(m.value) for m in log.records(TOPICS.requests()))


def issued_groups(log: MemoryLog) -> list[str]:
    """Of torn requests too: the key is the request's id."""
    return [(m.key or b"").decode().rsplit("/", 2)[0] for m in log.records(TOPICS.requests())]


def outcomes(log: MemoryLog) -> list[Outcome]:
    return [CODEC.decode(m.value) for m in log.records(TOPICS.outcomes)]


def count_open(log: MemoryLog) -> int:
    closed = {o.group_id for o in outcomes(log) if o.event in ("trained", "dropped")}
    return sum(group not in closed for group in issued_groups(log))


def assert_every_group_ended_once(log: MemoryLog) -> None:
    ends = Counter(o.group_id for o in outcomes(log) if o.event in ("trained", "dropped"))
    assert set(ends) == set(issued_groups(log))
    assert set(ends.values()) == {1}


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    seed=st.integers(0, 10_000),
    max_staleness=st.integers(0, 3),
    groups_per_batch=st.integers(1, 3),
    restart_every=st.sampled_from([0, 7, 23]),
)
def test_every_group_ends_once_and_in_time(seed, max_staleness, groups_per_batch, restart_every):
    rule = AdmissionRule(groups_per_batch=groups_per_batch, max_staleness=max_staleness, steps=4)
    log, loop = run_loop(rule, seed=seed, restart_every=restart_every)
    assert loop.version == rule.steps
    assert loop.most_open <= (max_staleness + 1) * rule.groups_per_batch
    assert_every_group_ended_once(log)
    trained = [o for o in outcomes(log) if o.event == "trained"]
    assert len(trained) == rule.steps * rule.groups_per_batch
    assert all(0 <= o.staleness <= max_staleness for o in trained)
    assert not any(o.reason == "expired" for o in outcomes(log))
    assert not log.records(TOPICS.dead_letters)


@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(seed=st.integers(0, 10_000), restart_every=st.sampled_from([0, 7]))
def test_a_torn_sample_costs_its_group_and_no_slot(seed, restart_every):
    rule = AdmissionRule(groups_per_batch=2, max_staleness=1, steps=6)
    log, loop = run_loop(
        rule, seed=seed, drops=Drops(torn_sample=0.15), restart_every=restart_every
    )
    assert loop.version == rule.steps
    assert_every_group_ended_once(log)
    torn = {o.group_id for o in outcomes(log) if o.reason == "dead_letter"}
    assert len(log.records(TOPICS.dead_letters)) >= len(torn) > 0


SHARES = st.sampled_from([0.0, 0.1, 0.4])


@settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    drops=st.builds(Drops, **{place.name: SHARES for place in fields(Drops)}),
    seed=st.integers(0, 10_000),
    max_staleness=st.integers(0, 2),
    groups_per_batch=st.integers(1, 3),
    restart_every=st.sampled_from([0, 11]),
    on_slow=st.sampled_from(["wait", "expire"]),
    epochs=st.sampled_from([1, None]),
)
@example(
    drops=Drops(torn_request=0.4),
    seed=0,
    max_staleness=1,
    groups_per_batch=2,
    restart_every=0,
    on_slow="wait",
    epochs=1,
)
def test_no_combination_of_drops_stalls_the_run(
    drops, seed, max_staleness, groups_per_batch, restart_every, on_slow, epochs
):
    rule = AdmissionRule(groups_per_batch=groups_per_batch, max_staleness=max_staleness, steps=4)
    log, loop = run_loop(
        rule,
        seed=seed,
        drops=drops,
        restart_every=restart_every,
        num_prompts=20,
        max_drops=30,
        on_slow=on_slow,
        epochs=epochs,
    )
    closed = next(o for o in outcomes(log) if o.event == "closed")
    assert closed.num_issued == len(issued_groups(log))
    assert closed.reason != "steps_done" or loop.version == rule.steps
    assert loop.most_open <= (max_staleness + 1) * rule.groups_per_batch
    assert_every_group_ended_once(log)


def test_prompts_that_end_early_leave_a_short_last_batch():
    rule = AdmissionRule(groups_per_batch=4, max_staleness=1, steps=100)
    log, loop = run_loop(rule, seed=1, drops=Drops(uniform=0.0), num_prompts=10, epochs=1)
    assert loop.version == 3
    assert_every_group_ended_once(log)
    closed = next(o for o in outcomes(log) if o.event == "closed")
    assert (closed.reason, closed.num_issued) == ("prompts_exhausted", 10)


def test_rollouts_that_teach_nothing_stop_the_run_and_name_the_cause():
    rule = AdmissionRule(groups_per_batch=2, max_staleness=1, steps=3)
    log, _ = run_loop(rule, seed=2, drops=Drops(uniform=1.0), max_drops=20)
    closed = next(o for o in outcomes(log) if o.event == "closed")
    assert closed.reason == "no_signal: drop_uniform"


def test_a_prompt_is_issued_once_an_epoch_in_a_seeded_order():
    rule = AdmissionRule(groups_per_batch=2, max_staleness=0, steps=10)
    first, _ = run_loop(rule, seed=3, num_prompts=6)
    again, _ = run_loop(rule, seed=4, num_prompts=6)
    orders = [
        [r.prompt.prompt_id for r in sorted(issued(log), key=lambda r: r.sampling.seed)]
        for log in (first, again)
    ]
    shared = min(map(len, orders))
    assert orders[0][:shared] == orders[1][:shared]
    assert len(set(orders[0][:6])) == 6


def test_a_record_that_does_not_decode_is_a_dead_letter_and_the_flow_goes_on():
    log = make_log(1)
    running = service(log, "pipeline", [TOPICS.trajectories(POLICY)], is_singleton=False)
    good = [make_trajectory(float(i), sample_index=i, group_size=2) for i in range(2)]
    with log.writer("w").transaction() as txn:
        txn.write(TOPICS.trajectories(POLICY), b"k", b"not a record")
        for trajectory in good:
            txn.write(TOPICS.trajectories(POLICY), b"k", CODEC.encode(trajectory))
    with running.started(make_pipeline()) as processor:
        for _ in range(5):
            processor.turn(0.0)
    (letter,) = [CODEC.decode(m.value) for m in log.records(TOPICS.dead_letters)]
    assert (letter.topic, letter.value) == (TOPICS.trajectories(POLICY), b"not a record")
    assert len(log.records(TOPICS.groups(POLICY))) == 1


def test_a_stage_that_raises_drops_the_group_and_keeps_the_record():
    def broken(_group):
        raise ZeroDivisionError("by design")

    log = make_log(1)
    made = service(log, "pipeline", [TOPICS.trajectories(POLICY)], is_singleton=False)
    pipeline = Pipeline(
        [Stage(name="broken", function=broken)],
        policy=POLICY,
        groups_topic=TOPICS.groups(POLICY),
        outcomes_topic=TOPICS.outcomes,
        letters=DeadLetters(TOPICS.dead_letters, "pipeline"),
        codec=CODEC,
    )
    with log.writer("w").transaction() as txn:
        for index in range(2):
            trajectory = make_trajectory(float(index), sample_index=index, group_size=2)
            txn.write(TOPICS.trajectories(POLICY), b"k", CODEC.encode(trajectory))
    with made.started(pipeline) as processor:
        for _ in range(3):
            processor.turn(0.0)
    (outcome,) = outcomes(log)
    assert (outcome.event, outcome.reason) == ("dropped", "dead_letter")
    (letter,) = [CODEC.decode(m.value) for m in log.records(TOPICS.dead_letters)]
    assert letter.stage == "broken"
    assert "by design" in letter.stack


def test_a_prompt_edited_into_the_pool_later_joins_the_next_epoch():
    log = make_log(2)
    rule = AdmissionRule(groups_per_batch=1, max_staleness=0, steps=10)
    made = service(log, "scheduler", [TOPICS.prompts, TOPICS.outcomes])
    with made.started(make_scheduler(log, rule)) as processor:
        processor.turn(0.0)
        late: Prompt = replace(make_prompt("late ="), prompt_id="late")
        with log.writer("prompts").transaction() as txn:
            txn.write(TOPICS.prompts, b"late", CODEC.encode(late))
        processor.turn(0.0)
    assert len(list(issued(log))) == 1


def turn_often(processor: RunningProcessor) -> None:
    for _ in range(4):
        processor.turn(0.0)


def test_a_stage_that_fails_on_every_group_ends_the_service_with_its_name():
    def broken(_group):
        raise ZeroDivisionError("by design")

    log = make_log(1)
    made = service(log, "pipeline", [TOPICS.trajectories(POLICY)], is_singleton=False)
    pipeline = Pipeline(
        [Stage(name="broken", function=broken)],
        policy=POLICY,
        groups_topic=TOPICS.groups(POLICY),
        outcomes_topic=TOPICS.outcomes,
        letters=made.letters,
        codec=CODEC,
    )
    with log.writer("w").transaction() as txn:
        for group in range(4):
            for index in range(2):
                trajectory = make_trajectory(
                    float(index), group_id=f"g{group}", sample_index=index, group_size=2
                )
                txn.write(TOPICS.trajectories(POLICY), b"k", CODEC.encode(trajectory))
    with made.started(pipeline) as processor, pytest.raises(StageError, match="stage broken"):
        turn_often(processor)
