"""The changelog: what is written of a state is what is read back."""

from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.clock import FixedClock
from astra_stream.log.headers import unseal
from astra_stream.log.interface import Message
from astra_stream.log.memory import MemoryLog
from astra_stream.log.processor import Finish, Forget, Keep, Write
from astra_stream.processing.state import Changelog

TOPIC = "t.changelog"
EFFECTS = st.lists(
    st.one_of(
        st.builds(Keep, st.sampled_from("abc"), st.integers(0, 9)),
        st.builds(Forget, st.sampled_from("abc")),
    ),
    max_size=8,
)


def commit(log, changelog, partition, effects):
    rows = changelog.entries(partition, effects)
    with log.writer("p").transaction() as txn:
        for key, value in rows:
            txn.write(TOPIC, key, value, partition=partition)
    changelog.committed()
    return rows


def restored(log, *partitions):
    changelog = Changelog(log, TOPIC, writer="0", clock=FixedClock())
    return changelog, changelog.restore(partitions)


@settings(max_examples=25)
@given(polls=st.lists(EFFECTS, max_size=6), restart_at=st.integers(0, 6))
def test_a_restored_state_is_what_the_effects_add_up_to(polls, restart_at):
    log = MemoryLog({TOPIC: 1})
    changelog, expected = restored(log, 0)[0], {}
    for number, effects in enumerate(polls):
        if number == restart_at:
            changelog, _ = restored(log, 0)
        commit(log, changelog, 0, effects)
        for effect in effects:
            if isinstance(effect, Keep):
                expected[effect.key] = effect.value
            else:
                expected.pop(effect.key, None)
    assert restored(log, 0)[1] == {0: expected}


def test_only_the_last_word_on_a_key_is_written():
    changelog, _ = restored(MemoryLog({TOPIC: 1}), 0)
    rows = changelog.entries(0, [Keep("a", 1), Write("x", "k", None), Keep("a", 2), Finish()])
    assert [(key, unseal(key, value)) for key, value in rows] == [(b"a", 2)]


def test_what_never_stood_in_the_topic_is_not_deleted_from_it():
    changelog, _ = restored(MemoryLog({TOPIC: 1}), 0)
    assert changelog.entries(0, [Keep("a", 1), Forget("a"), Forget("b")]) == []


def test_partitions_have_states_of_their_own():
    log = MemoryLog({TOPIC: 2})
    changelog, _ = restored(log, 0, 1)
    commit(log, changelog, 0, [Keep("a", 1)])
    commit(log, changelog, 1, [Keep("a", 2)])
    assert restored(log, 0, 1)[1] == {0: {"a": 1}, 1: {"a": 2}}
    assert restored(log, 1)[1] == {1: {"a": 2}}


def test_a_partition_taken_away_is_learned_anew():
    log = MemoryLog({TOPIC: 1})
    changelog, _ = restored(log, 0)
    commit(log, changelog, 0, [Keep("a", 1)])
    changelog.release(0)
    changelog.restore([0])
    assert changelog.entries(0, [Forget("a")]) == [(b"a", None)]


def message(topic, partition, offset):
    return Message(topic, partition, offset, None, b"", 0)


def test_what_a_transaction_read_is_recorded_in_order_and_is_no_state():
    log = MemoryLog({TOPIC: 1})
    changelog, _ = restored(log, 0)
    messages = [message("x", 0, 3), message("x", 0, 5), message("y", 1, 0), message("x", 0, 6)]
    for now_s in (1.5, 2.5):
        key, value = changelog.reads(0, messages, now_s)
        with log.writer("p").transaction() as txn:
            txn.write(TOPIC, key, value, partition=0)
    first, second = log.records(TOPIC)
    assert (first.key, second.key) == (b"reads/0/0", b"reads/0/1")
    assert unseal(first.key, first.value) == {
        "ranges": [["x", 0, 3, 5], ["y", 1, 0, 0], ["x", 0, 6, 6]],
        "now_s": 1.5,
    }
    again, state = restored(log, 0)
    assert state == {0: {}}
    assert again.reads(0, [], 0.0)[0] == b"reads/0/2"
