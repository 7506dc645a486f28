"""Which requests a worker plays, and what may be committed of them."""

import pytest

from astra_stream.log.interface import Committed, Message, Partition
from astra_stream.log.memory import MemoryLog
from astra_stream.rollout.requests import Finished, HeldRequests

TOPIC = "requests"


@pytest.fixture
def log():
    log = MemoryLog({TOPIC: 2})
    with log.writer("w").transaction() as txn:
        for number in range(8):
            txn.write(TOPIC, None, str(number).encode(), partition=number % 2)
    return log


def subscribe(log):
    """A reader whose partitions are held, and what it was delivered."""
    held = HeldRequests()
    reader = log.subscribe(
        [TOPIC],
        group="g",
        on_assigned=lambda gained: held.gained(reader, gained),
        on_revoked=held.lost,
    )
    return reader, held, reader.poll(0.0)


def accepted(held, messages):
    """The requests that are to be played, as they are once finished."""
    deliveries = map(held.accept, messages)
    return [Finished(delivery=one, writes=()) for one in deliveries if one is not None]


def commit(log, reader, held, finished):
    positions = finish(held, finished)
    with log.writer("worker").transaction() as txn:
        txn.commit_offsets(reader, positions)


def finish(held, finished):
    return held.positions([one.delivery for one in held.finish(finished)])


def of_partition(requests, index):
    return [one for one in requests if one.delivery.message.partition == index]


def offsets(requests):
    return [one.delivery.message.offset for one in requests]


def test_every_delivered_request_is_played(log):
    _, held, messages = subscribe(log)
    assert len(accepted(held, messages)) == 8


def test_a_request_of_a_partition_that_is_not_held_is_not_played():
    held = HeldRequests()
    assert held.accept(Message(TOPIC, 0, 0, None, b"", 0)) is None


def test_what_ended_out_of_order_is_not_played_again_after_a_restart(log):
    reader, held, messages = subscribe(log)
    first, second, third, fourth = of_partition(accepted(held, messages), 0)
    commit(log, reader, held, [second, fourth])
    reader.close()

    _, held, messages = subscribe(log)
    again = accepted(held, messages)
    assert offsets(of_partition(again, 0)) == offsets([first, third])
    assert len(of_partition(again, 1)) == 4


def test_after_a_restart_the_position_moves_past_what_was_done_before(log):
    reader, held, messages = subscribe(log)
    _, second, _, fourth = of_partition(accepted(held, messages), 0)
    commit(log, reader, held, [second, fourth])
    reader.close()

    _, held, messages = subscribe(log)
    rest = of_partition(accepted(held, messages), 0)
    positions = finish(held, rest)
    assert positions[Partition(TOPIC, 0)] == Committed(fourth.delivery.message.offset + 1)


def test_the_position_moves_past_all_that_is_done_in_a_row(log):
    _, held, messages = subscribe(log)
    first, second, *_ = of_partition(accepted(held, messages), 1)
    positions = finish(held, [second])
    assert positions[Partition(TOPIC, 1)].offset == first.delivery.message.offset
    positions = finish(held, [first])
    assert positions[Partition(TOPIC, 1)].offset == second.delivery.message.offset + 1
    assert positions[Partition(TOPIC, 1)].metadata == ""


def test_a_transaction_written_again_takes_the_same_positions(log):
    _, held, messages = subscribe(log)
    requests = accepted(held, messages)
    assert finish(held, requests[1:3]) == finish(held, requests[1:3])


def test_what_was_lost_is_neither_held_nor_written(log):
    _, held, messages = subscribe(log)
    requests = accepted(held, messages)
    held.lost([Partition(TOPIC, 0)])
    assert {one.delivery.message.partition for one in held.finish(requests)} == {1}
    assert finish(held, requests).keys() == {Partition(TOPIC, 1)}
    (lost, *_) = of_partition(requests, 0)
    assert not held.is_held(lost.delivery)


def test_what_was_lost_and_gained_again_is_left_to_the_later_holding(log):
    reader, held, messages = subscribe(log)
    before = of_partition(accepted(held, messages), 0)
    held.lost([Partition(TOPIC, 0)])
    held.gained(reader, [Partition(TOPIC, 0)])
    assert held.finish(before) == []
    after = accepted(held, [one.delivery.message for one in before])
    assert offsets(held.finish(after)) == offsets(before)


def test_a_start_is_known_to_the_next_owner_until_it_ends_or_is_given_back(log):
    reader, held, messages = subscribe(log)
    first, second, third, _ = of_partition(accepted(held, messages), 0)
    started = [one.delivery for one in (first, second, third)]
    held.started(started, at_s=100.0)
    held.started(started[:1], at_s=200.0)
    held.given_back(started[1:2])
    with log.writer("worker").transaction() as txn:
        txn.commit_offsets(reader, held.positions(started))
    held.finish([third])
    reader.close()

    _, held, messages = subscribe(log)
    again = of_partition(accepted(held, messages), 0)
    assert [one.delivery.num_starts for one in again] == [2, 0, 1, 0]
    assert [one.delivery.first_start_s for one in again] == [100, None, 100, None]
