"""Trajectories in any order, twice, or torn: their group ends once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Message
from astra_stream.log.processor import GROUP_HEADER, Effect, Forget, Keep, Write
from astra_stream.processing.pipeline import (
    GROUP_OVERHEAD_BYTES,
    DeadLetters,
    Pipeline,
    Stage,
    StageError,
    process_message,
)
from astra_stream.processing.recent import NUM_KEPT, RecentlyEnded
from astra_stream.records import DeadLetter, Group, Outcome, Trajectory
from astra_stream.testing.builders import make_group, make_trajectory

CODEC = Codec(declared("schemas"))
LETTERS = DeadLetters("letters", "pipeline")
TORN = b"\x00torn"


def make_pipeline(*stages: Stage, entries: dict | None = None, **limits: int) -> Pipeline:
    pipeline = Pipeline(
        stages,
        policy="main",
        groups_topic="groups",
        outcomes_topic="outcomes",
        letters=LETTERS,
        codec=CODEC,
        **limits,
    )
    pipeline.restore(0, entries or {})
    return pipeline


def messages_of(*group_ids: str, torn: Sequence[int] = ()) -> list[Message]:
    """The trajectories of groups of three; ``torn`` are places at which one does not decode."""
    found = []
    for group_id in group_ids:
        for trajectory in make_group(1, 0, 1, group_id=group_id).trajectories:
            place = len(found)
            value = TORN if place in torn else CODEC.encode(trajectory)
            header = ((GROUP_HEADER, group_id.encode()),)
            found.append(Message("trajectories", 0, place, b"prompt", value, 0, header))
    return found


def process(pipeline: Pipeline, messages: Sequence[Message]) -> list[Effect]:
    return [effect for message in messages for effect in one(pipeline, message)]


def one(pipeline: Pipeline, message: Message) -> list[Effect]:
    return process_message(message, pipeline, codec=CODEC, letters=LETTERS, now_s=1.0)


def written(effects: Sequence[Effect], kind: type) -> list:
    return [e.record for e in effects if isinstance(e, Write) and isinstance(e.record, kind)]


def kept(effects: Sequence[Effect]) -> dict:
    state: dict = {}
    for effect in effects:
        if isinstance(effect, Keep):
            state[effect.key] = effect.value
        elif isinstance(effect, Forget):
            state.pop(effect.key, None)
    return state


@given(order=st.permutations(range(6)), twice=st.lists(st.integers(0, 5), max_size=4))
def test_a_group_ends_once_in_whatever_order_its_samples_come_and_come_again(order, twice):
    messages = messages_of("a", "b")
    effects = process(make_pipeline(), [messages[i] for i in [*order, *twice]])
    groups = written(effects, Group)
    assert sorted(g.group_id for g in groups) == ["a", "b"]
    assert all([t.sample_index for t in g.trajectories] == [0, 1, 2] for g in groups)
    assert sorted(o.group_id for o in written(effects, Outcome)) == ["a", "b"]


@given(
    order=st.permutations(range(6)),
    torn=st.sets(st.integers(0, 2), min_size=1),
    restart_at=st.integers(0, 6),
)
def test_a_torn_sample_drops_its_group_once_and_no_other(order, torn, restart_at):
    messages = messages_of("a", "b", torn=sorted(torn))
    delivered = [messages[i] for i in order]
    effects = process(make_pipeline(), delivered[:restart_at])
    effects += process(make_pipeline(entries=kept(effects)), delivered[restart_at:])
    assert [g.group_id for g in written(effects, Group)] == ["b"]
    ends = {o.group_id: (o.event, o.reason) for o in written(effects, Outcome)}
    assert ends == {"a": ("dropped", "dead_letter"), "b": ("completed", "")}
    assert len(written(effects, Outcome)) == 2
    assert len(written(effects, DeadLetter)) == len(torn)
    assert not [key for key in kept(effects) if key.startswith("group/")]


def test_a_torn_record_without_a_header_is_a_dead_letter_and_no_more():
    message = Message("trajectories", 0, 7, b"prompt", TORN, 0)
    (letter,) = one(make_pipeline(), message)
    assert letter.record.value == TORN
    assert (letter.record.topic, letter.record.offset) == ("trajectories", 7)


def test_a_stage_that_raises_drops_the_group_with_a_dead_letter_and_then_ends_the_service():
    def broken(group: Group) -> Iterator[Group]:
        raise ZeroDivisionError(group.group_id)
        yield group

    pipeline = make_pipeline(Stage(name="broken", function=broken))
    effects = process(pipeline, messages_of("a", "b"))
    assert [o.reason for o in written(effects, Outcome)] == ["dead_letter"] * 2
    assert [letter.error for letter in written(effects, DeadLetter)] == ["a", "b"]
    assert all("ZeroDivisionError" in letter.stack for letter in written(effects, DeadLetter))
    with pytest.raises(StageError, match="stage broken must process a record: got 3 failures"):
        process(pipeline, messages_of("c"))


@given(num_groups=st.integers(0, 3 * NUM_KEPT), restart_at=st.integers(0, NUM_KEPT))
def test_the_last_groups_that_ended_are_known_also_after_a_restart(num_groups, restart_at):
    recent, entries = RecentlyEnded(), {}
    for number in range(num_groups):
        if number == restart_at:
            recent = RecentlyEnded(entries)
        keep = recent.add(f"g{number}")
        entries[keep.key] = keep.value
    assert len(entries) == min(num_groups, NUM_KEPT)
    for known in (recent, RecentlyEnded(entries)):
        oldest = max(0, num_groups - NUM_KEPT)
        assert all(f"g{number}" in known for number in range(oldest, num_groups))
        assert f"g{oldest - 1}" not in known


def endings(effects: Sequence[Effect]) -> list[tuple[str, str, str]]:
    return [(o.group_id, o.event, o.reason) for o in written(effects, Outcome)]


def test_a_group_that_would_be_too_large_for_a_record_ends_with_a_dead_letter_at_once():
    messages = messages_of("large", "small")
    size = max(sum(len(m.value) for m in part) for part in (messages[:3], messages[3:]))
    messages[1] = replace(messages[1], value=CODEC.encode(long_trajectory("large", 1)))
    pipeline = make_pipeline(max_message_bytes=GROUP_OVERHEAD_BYTES + size + 500)
    effects = process(pipeline, messages)
    assert endings(effects) == [("large", "dropped", "dead_letter"), ("small", "completed", "")]
    (letter,) = written(effects, DeadLetter)
    assert letter.error.startswith("group 'large' must have at most ")
    assert kept(effects).keys().isdisjoint({"group/large", "group/small"})


def test_a_stage_that_makes_a_group_too_large_for_a_record_drops_it():
    def grow(group):
        first, *rest = group.trajectories
        yield replace(group, trajectories=(replace(first, answer="9" * 5000), *rest))

    messages = messages_of("grown")
    size = sum(len(m.value) for m in messages)
    pipeline = make_pipeline(
        Stage(name="grow", function=grow), max_message_bytes=GROUP_OVERHEAD_BYTES + size + 500
    )
    effects = process(pipeline, messages)
    assert endings(effects) == [("grown", "dropped", "dead_letter")]
    assert not written(effects, Group)
    assert len(written(effects, DeadLetter)) == 1


def long_trajectory(group_id: str, sample_index: int) -> Trajectory:
    return make_trajectory(
        group_id=group_id, sample_index=sample_index, group_size=3, reply_tokens=1000
    )
