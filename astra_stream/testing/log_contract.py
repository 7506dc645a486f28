"""What every log must do: inherit ``LogContract``, say how to make one, and the suite runs.

Waiting is blocking in ``poll`` with a deadline; a log that needs longer fails by name.
"""

import random
import threading
import time
from collections.abc import Collection

import pytest

from astra_stream.errors import (
    AstraStreamError,
    ConfigError,
    FencedError,
    RebalancedError,
    RecordError,
)
from astra_stream.log.interface import (
    FRAMING_BYTES,
    MAX_MESSAGE_BYTES,
    Committed,
    Partition,
    TopicSettings,
)
from astra_stream.log.partitioner import partition_for
from astra_stream.testing.log_suite import (
    DEADLINE_S,
    LogSuite,
    poll_until,
    read,
    until,
    values,
)


class GroupContract(LogSuite):
    """How members of a group share partitions."""

    def test_members_share_the_partitions(self) -> None:
        topic = self.topic(partitions=4)
        one = self.member(topic)
        poll_until([one], lambda: len(one.assignment()) == 4)
        two = self.member(topic)
        poll_until([one, two], lambda: len(two.assignment()) == 2)
        assert len(one.assignment()) == 2
        assert one.assignment() | two.assignment() == {Partition(topic, i) for i in range(4)}
        two.close()
        poll_until([one], lambda: len(one.assignment()) == 4)

    def test_a_partition_moves_with_what_its_owner_commits_on_the_way_out(self) -> None:
        topic, writer = self.topic(partitions=2), self.writer()
        with writer.transaction() as txn:
            for index in range(2):
                for value in (b"first", b"second"):
                    txn.write(topic, None, value, partition=index)

        def hand_over(lost: Collection[Partition]) -> None:
            with writer.transaction() as txn:
                txn.commit_offsets(one, {place: Committed(1, str(place)) for place in lost})

        one = self.member(topic, on_revoked=hand_over)
        assert len(read(one, 4)) == 4
        given: list[Partition] = []
        two = self.member(topic, on_assigned=given.extend)
        messages = poll_until([one, two], two.assignment, of=two)
        messages += [] if messages else read(two, 1)
        assert values(messages) == [b"second"]
        assert frozenset(given) == two.assignment()
        assert two.committed(given) == {given[0]: Committed(1, str(given[0]))}

    def test_positions_of_a_lost_partition_are_refused(self) -> None:
        topic, writer = self.topic(partitions=2), self.writer()
        one = self.member(topic)
        poll_until([one], lambda: len(one.assignment()) == 2)
        two = self.member(topic)
        poll_until([one, two], two.assignment)
        (lost,) = two.assignment()
        with pytest.raises(RebalancedError, match="taken away"), writer.transaction() as txn:
            txn.commit_offsets(one, {lost: Committed(1)})
        with writer.transaction() as txn:
            txn.commit_offsets(two, {lost: Committed(0, "mine")})
        assert two.committed([lost]) == {lost: Committed(0, "mine")}

    def test_a_closed_reader_lets_go_in_its_callback(self) -> None:
        lost: list[Partition] = []
        reader = self.member(self.topic(), on_revoked=lost.extend)
        poll_until([reader], reader.assignment)
        held = reader.assignment()
        reader.close()
        reader.close()
        assert frozenset(lost) == held
        with pytest.raises(ValueError, match="must be open"):
            reader.poll(0.0)

    def test_a_callback_can_choose_where_to_start(self) -> None:
        topic = self.topic()
        self.write(topic, b"a", b"b", b"c")

        def skip_one(gained: Collection[Partition]) -> None:
            for place in gained:
                reader.seek(place, 1)

        reader = self.member(topic, on_assigned=skip_one)
        assert values(read(reader, 2)) == [b"b", b"c"]


class LogContract(GroupContract):
    """The suite; ``make_log`` and ``make_admin`` are left to the implementation's test."""

    # Reading and writing

    def test_committed_records_are_read_in_order(self) -> None:
        topic = self.topic()
        self.write(topic, b"a", b"b", b"c")
        assert values(read(self.alone(topic), 3)) == [b"a", b"b", b"c"]

    def test_a_record_comes_back_whole(self) -> None:
        topic = self.topic()
        before_ms = int(time.time() * 1000) - 60_000
        with self.writer().transaction() as txn:
            txn.write(topic, b"key", b"value", headers=[("name", b"one"), ("name", b"two")])
            txn.write(topic, b"key", None)
        first, second = read(self.alone(topic), 2)
        assert (first.key, first.value) == (b"key", b"value")
        assert first.headers == (("name", b"one"), ("name", b"two"))
        assert first.coordinates == f"{topic}[0]@0"
        assert first.timestamp_ms > before_ms
        assert second.value is None

    def test_a_key_decides_the_partition(self) -> None:
        topic = self.topic(partitions=5)
        keys = [f"key-{i}".encode() for i in range(40)]
        with self.writer().transaction() as txn:
            for key in keys:
                txn.write(topic, key, b"")
        found = {m.key: m.partition for m in read(self.alone(topic), len(keys))}
        assert found == {key: partition_for(key, 5) for key in keys}

    def test_a_poll_returns_no_more_than_it_is_asked_for(self) -> None:
        topic = self.topic()
        self.write(topic, *[b"x"] * 10)
        reader = self.alone(topic)
        first = reader.poll(DEADLINE_S, max_messages=4)
        assert 1 <= len(first) <= 4
        assert len(first) + len(read(reader, 10 - len(first))) == 10

    def test_a_poll_without_records_is_empty(self) -> None:
        assert self.alone(self.topic()).poll(0.2) == []

    def test_a_waiting_poll_wakes_when_a_record_is_committed(self) -> None:
        topic, writer = self.topic(), self.writer()
        reader = self.alone(topic)
        assert reader.poll(0.0) == []
        thread = threading.Thread(target=self.write, args=(topic, b"a"), kwargs={"writer": writer})
        thread.start()
        assert values(read(reader, 1)) == [b"a"]
        thread.join()

    def test_offsets_have_holes_and_nothing_is_missed(self) -> None:
        topic, writer = self.topic(), self.writer()
        for value in (b"a", b"b", b"c"):
            self.write(topic, value, writer=writer)
        reader = self.alone(topic)
        messages = read(reader, 3)
        assert [message.offset for message in messages] == [0, 2, 4]
        assert reader.end_offsets([Partition(topic, 0)]) == {Partition(topic, 0): 6}

    def test_a_value_beyond_the_limit_is_refused(self) -> None:
        topic, writer = self.topic(), self.writer()
        with pytest.raises(RecordError, match=f"{topic}: record must have at most"):
            self.write(topic, bytes(MAX_MESSAGE_BYTES), writer=writer)
        self.write(topic, b"small", writer=writer)
        assert values(read(self.alone(topic), 1)) == [b"small"]

    def test_a_value_beyond_the_topics_own_limit_is_refused(self) -> None:
        topic, writer = self.topic(max_message_bytes="1000"), self.writer()
        assert self.log.max_message_bytes(topic) == 1000
        with pytest.raises(RecordError, match="must have at most 1000 bytes"):
            self.write(topic, bytes(1000), writer=writer)
        self.write(topic, b"small", writer=writer)
        assert values(read(self.alone(topic), 1)) == [b"small"]

    def test_the_largest_value_passes(self) -> None:
        topic = self.topic(max_message_bytes=str(MAX_MESSAGE_BYTES))
        largest = random.Random(0).randbytes(MAX_MESSAGE_BYTES - FRAMING_BYTES)
        self.write(topic, largest)
        (message,) = read(self.alone(topic), 1)
        assert message.value == largest

    # Transactions

    def test_an_open_transaction_is_hidden_and_holds_later_ones_back(self) -> None:
        topic, place = (name := self.topic()), Partition(name, 0)
        open_writer, other = self.writer("open"), self.writer("other")
        reader = self.alone(topic)
        with open_writer.transaction() as txn:
            txn.write(topic, None, b"open")
            until(lambda: reader.end_offsets([place])[place] == 1)
            self.write(topic, b"later", writer=other)
            assert reader.poll(0.3) == []
        assert values(read(reader, 2)) == [b"open", b"later"]

    def test_an_aborted_transaction_is_never_seen(self) -> None:
        topic, writer = self.topic(), self.writer()
        reader = self.alone(topic, group="g")

        def give_up_halfway() -> None:
            with writer.transaction() as txn:
                txn.write(topic, None, b"aborted")
                txn.commit_offsets(reader, {Partition(topic, 0): Committed(7)})
                raise KeyError

        with pytest.raises(KeyError):
            give_up_halfway()
        self.write(topic, b"kept", writer=writer)
        assert values(read(reader, 1)) == [b"kept"]
        assert reader.committed([Partition(topic, 0)]) == {}

    def test_records_and_positions_are_committed_together(self) -> None:
        source, sink = self.topic(), self.topic()
        self.write(source, b"a", b"b")
        reader = self.alone(source, group="g")
        position = Committed(read(reader, 2)[-1].offset + 1, "what is known above it")
        with self.writer().transaction() as txn:
            txn.write(sink, None, b"ab")
            txn.commit_offsets(reader, {Partition(source, 0): position})
        assert values(read(self.alone(sink), 1)) == [b"ab"]
        place = Partition(source, 0)
        assert reader.committed([place, Partition(sink, 0)]) == {place: position}

    def test_positions_alone_can_be_committed(self) -> None:
        topic = self.topic()
        reader, place = self.alone(topic, group="g"), Partition(topic, 0)
        with self.writer().transaction() as txn:
            txn.commit_offsets(reader, {place: Committed(0, "x" * 3500)})
        assert reader.committed([place]) == {place: Committed(0, "x" * 3500)}

    def test_pending_positions_are_waited_for(self) -> None:
        topic, writer = self.topic(), self.writer()
        reader, place = self.alone(topic, group="g"), Partition(topic, 0)
        found: list[dict[Partition, Committed]] = []
        with writer.transaction() as txn:
            txn.commit_offsets(reader, {place: Committed(3)})
            other = self.alone(topic)
            asker = self.log.assign([], group=f"{self.name}.g")
            thread = threading.Thread(target=lambda: found.append(asker.committed([place])))
            thread.start()
            assert other.poll(0.2) == []
            assert found == []
        thread.join(DEADLINE_S)
        asker.close()
        assert found == [{place: Committed(3)}]

    def test_an_empty_transaction_leaves_nothing(self) -> None:
        topic, writer = self.topic(), self.writer()
        with writer.transaction():
            pass
        place = Partition(topic, 0)
        assert self.alone(topic).end_offsets([place]) == {place: 0}

    def test_a_second_open_transaction_is_refused(self) -> None:
        writer = self.writer()
        with (
            writer.transaction(),
            pytest.raises(ValueError, match="must be the only open one"),
            writer.transaction(),
        ):
            pass

    def test_positions_need_a_group(self) -> None:
        topic, writer = self.topic(), self.writer()
        reader = self.alone(topic)
        with pytest.raises(ValueError, match="have a group"), writer.transaction() as txn:
            txn.commit_offsets(reader, {Partition(topic, 0): Committed(1)})

    # Fencing

    def test_a_newer_writer_fences_the_older_one(self) -> None:
        topic, older = self.topic(), self.writer()
        self.write(topic, b"older", writer=older)
        newer = self.writer()
        with pytest.raises(FencedError):
            self.write(topic, b"zombie", writer=older)
        self.write(topic, b"newer", writer=newer)
        assert values(read(self.alone(topic), 2)) == [b"older", b"newer"]
        with pytest.raises(FencedError), older.transaction():
            pass

    def test_a_newer_writer_aborts_what_the_older_one_left_open(self) -> None:
        topic, older = self.topic(), self.writer()
        reader, place = self.alone(topic, group="g"), Partition(topic, 0)

        def be_overtaken() -> None:
            with older.transaction() as txn:
                txn.write(topic, None, b"half")
                txn.commit_offsets(reader, {place: Committed(1)})
                until(lambda: reader.end_offsets([place])[place] == 1)
                self.write(topic, b"whole", writer=self.writer())

        with pytest.raises(FencedError):
            be_overtaken()
        assert values(read(reader, 1)) == [b"whole"]
        assert reader.committed([place]) == {}

    # Positions

    def test_reading_goes_on_where_the_group_committed(self) -> None:
        topic, writer = self.topic(), self.writer()
        self.write(topic, b"a", b"b", b"c", writer=writer)
        first = self.alone(topic, group="g")
        with writer.transaction() as txn:
            txn.commit_offsets(first, {Partition(topic, 0): Committed(2)})
        assert values(read(self.alone(topic, group="g"), 1)) == [b"c"]
        assert values(read(self.alone(topic), 3)) == [b"a", b"b", b"c"]

    def test_seek_goes_back_and_forth(self) -> None:
        topic, place = (name := self.topic()), Partition(name, 0)
        self.write(topic, b"a", b"b", b"c")
        reader = self.alone(topic)
        reader.seek(place, 2)
        assert values(read(reader, 1)) == [b"c"]
        reader.seek(place, 0)
        assert values(read(reader, 3)) == [b"a", b"b", b"c"]
        with pytest.raises(ValueError, match="must be assigned"):
            reader.seek(Partition("other", 0), 0)

    def test_positions_start_where_reading_does_and_end_past_the_last_control_record(self) -> None:
        topic, writer = self.topic(partitions=2), self.writer()
        read_one, unread = Partition(topic, 0), Partition(topic, 1)
        self.write(topic, b"a", b"b", b"c", writer=writer)
        with writer.transaction() as txn:
            txn.commit_offsets(self.alone(topic, group="g"), {read_one: Committed(1)})
        reader = self.alone(topic, group="g")
        assert reader.positions([read_one, unread]) == {read_one: 1, unread: 0}
        assert len(read(reader, 2)) == 2
        poll_until([reader], lambda: reader.positions([read_one])[read_one] == 4)
        assert reader.positions([read_one, unread]) == reader.end_offsets([read_one, unread])
        reader.seek(read_one, 2)
        assert reader.positions([read_one]) == {read_one: 2}

    def test_a_time_is_found(self) -> None:
        topic, place = (name := self.topic()), Partition(name, 0)
        self.write(topic, b"a", b"b")
        reader = self.alone(topic)
        (first, _) = read(reader, 2)
        far_ms = first.timestamp_ms + 3_600_000
        assert reader.offsets_at([place], first.timestamp_ms - 1000) == {place: 0}
        assert reader.offsets_at([place], far_ms) == reader.end_offsets([place]) == {place: 3}

    def test_a_paused_partition_is_silent_until_resumed(self) -> None:
        topic, writer = self.topic(partitions=2), self.writer()
        reader = self.alone(topic)
        paused = Partition(topic, 0)
        reader.pause([paused])
        with writer.transaction() as txn:
            txn.write(topic, None, b"silent", partition=0)
            txn.write(topic, None, b"heard", partition=1)
        assert values(read(reader, 1)) == [b"heard"]
        assert reader.poll(0.3) == []
        reader.resume([paused])
        assert values(read(reader, 1)) == [b"silent"]

    def test_a_position_that_was_trimmed_is_an_error_and_no_jump(self) -> None:
        topic, writer = self.topic(), self.writer()
        place = Partition(topic, 0)
        self.write(topic, b"a", b"b", b"c", writer=writer)
        with writer.transaction() as txn:
            txn.commit_offsets(self.alone(topic, group="g"), {place: Committed(1)})
        self.admin.trim(place, 2)
        behind = self.alone(topic, group="g")
        with pytest.raises(AstraStreamError, match=f"{topic}.*must still be in the log"):
            read(behind, 1)
        assert values(read(self.alone(topic), 1)) == [b"c"]

    # Topics

    def test_a_missing_topic_is_refused_with_the_command_that_makes_it(self) -> None:
        missing, writer = f"{self.name}.missing", self.writer()
        rule = f"topic '{missing}' must exist: .* Run: astra topics apply RUN.toml"
        with pytest.raises(ConfigError, match=rule):
            self.log.num_partitions(missing)
        with pytest.raises(ConfigError, match=rule):
            self.log.assign([missing])
        with pytest.raises(ConfigError, match=rule):
            self.log.subscribe([missing], group=self.name)
        with pytest.raises(ConfigError, match=rule):
            self.write(missing, b"", writer=writer)

    def test_topics_are_made_once_and_configured(self) -> None:
        topic = self.topic(partitions=3, retention_ms="-1")
        made = TopicSettings(name=topic, partitions=3, settings={"retention.ms": "-1"})
        assert self.admin.topics(self.name) == {topic: made}
        assert self.log.num_partitions(topic) == 3
        with pytest.raises(ConfigError, match="must be new"):
            self.admin.create([made])
        wanted = TopicSettings(name=topic, partitions=3, settings={"cleanup.policy": "compact"})
        self.admin.configure(wanted)
        assert self.admin.topics(self.name) == {topic: wanted}
