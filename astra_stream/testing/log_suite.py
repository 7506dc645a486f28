"""What a suite for logs stands on: topics of its own, clients that it closes, bounded waits."""

import time
import uuid
from collections.abc import Callable, Collection, Iterator

import pytest

from astra_stream.log.interface import (
    Log,
    LogAdmin,
    Message,
    Partition,
    Reader,
    TopicSettings,
    Writer,
)

DEADLINE_S = 15.0


class LogSuite:
    """Topics and ids are new in every test, so one broker serves all of them."""

    log: Log
    admin: LogAdmin

    def make_log(self) -> Log:
        """A log; the suite closes it."""
        raise NotImplementedError

    def make_admin(self, log: Log) -> LogAdmin:
        """What creates topics in that log."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _opened(self) -> Iterator[None]:
        self.name = f"contract-{uuid.uuid4().hex[:12]}"
        self.log = self.make_log()
        self.admin = self.make_admin(self.log)
        self.opened: list[Reader | Writer] = []
        yield
        for client in reversed(self.opened):
            client.close()
        self.log.close()

    def topic(self, partitions: int = 1, **settings: str) -> str:
        """Make a topic and return its name."""
        name = f"{self.name}.topic{len(self.admin.topics(self.name))}"
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create([TopicSettings(name=name, partitions=partitions, settings=named)])
        return name

    def writer(self, role: str = "writer") -> Writer:
        """A writer that the suite closes."""
        writer = self.log.writer(f"{self.name}.{role}")
        self.opened.append(writer)
        return writer

    def alone(self, *topics: str, group: str = "") -> Reader:
        """A reader of everything, which the suite closes."""
        reader = self.log.assign(topics, group=f"{self.name}.{group}" if group else "")
        self.opened.append(reader)
        return reader

    def member(self, *topics: str, **callbacks: Callable[[Collection[Partition]], None]) -> Reader:
        """A member of the test's group, which the suite closes."""
        group = f"{self.name}.group"
        reader = self.log.subscribe(topics, group=group, **callbacks)
        self.opened.append(reader)
        return reader

    def write(self, topic: str, *values: bytes, writer: Writer | None = None) -> None:
        """Commit values to partition 0 in one transaction."""
        with (writer or self.writer("seed")).transaction() as txn:
            for value in values:
                txn.write(topic, None, value, partition=0)


def values(messages: Collection[Message]) -> list[bytes | None]:
    """Values in the order of reading."""
    return [message.value for message in messages]


def read(reader: Reader, count: int) -> list[Message]:
    """Poll until ``count`` records have come; more than that fails."""
    messages: list[Message] = []
    ends_s = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < ends_s, f"got {len(messages)} of {count} records"
        messages += reader.poll(1.0)
    assert len(messages) == count
    return messages


def poll_until(
    readers: Collection[Reader], is_reached: Callable[[], object], of: Reader | None = None
) -> list[Message]:
    """Poll all of them in turn until the claim holds; return what ``of`` has read."""
    messages: list[Message] = []
    ends_s = time.monotonic() + DEADLINE_S
    while not is_reached():
        assert time.monotonic() < ends_s, [sorted(reader.assignment()) for reader in readers]
        for reader in readers:
            polled = reader.poll(0.05)
            if reader is of:
                messages += polled
    return messages


def until(is_reached: Callable[[], object]) -> None:
    """Ask again until the claim holds; each question blocks on the log's answer."""
    ends_s = time.monotonic() + DEADLINE_S
    while not is_reached():
        assert time.monotonic() < ends_s
