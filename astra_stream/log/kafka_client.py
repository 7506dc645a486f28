"""What all Kafka clients here share: settings, deadlines, and which error means what.

librdkafka writes to stderr every 50 ms while a broker is down; its lines go to a logger that nobody
hears, and a user gets one message with the address and the deadline.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from astra_stream.errors import AstraStreamError, FencedError, TransientError
from astra_stream.log.interface import Partition, missing_offset
from astra_stream.log.watchdog import Watchdog

FENCED = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.UNRELEASED_INSTANCE_ID,
    }
)
REBALANCED = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)
"""The group has moved on; the transaction is aborted and the writer stays usable."""
REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})
UNREACHABLE = REFUSED | {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
}
RETRIABLE = UNREACHABLE | {
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError._WAIT_CACHE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.CONCURRENT_TRANSACTIONS,
}
RETRY_S = 0.05
CONNECT_S = 2.0

NATIVE_LOG = logging.getLogger("astra_stream.log.librdkafka")
NATIVE_LOG.addHandler(logging.NullHandler())
NATIVE_LOG.propagate = False

Result = TypeVar("Result")
Settings = dict[str, Any]
"""librdkafka settings: names with dots to text, numbers, booleans and callbacks."""


class NotYetError(Exception):
    """The client or broker has not come so far: ask again until the deadline."""


def error_of(exception: KafkaException) -> KafkaError:
    """The error inside an exception of the client."""
    return exception.args[0]


class Connection:
    """An address, how to get in, and how long to try.

    Args:
        bootstrap: ``host:port`` of one or more brokers, with commas.
        security: librdkafka settings such as ``security.protocol``.
        deadline_s: How long a call may take in all, retries included.
        watchdog: Ends the process when a call overruns that.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        security: Mapping[str, str],
        deadline_s: float,
        watchdog: Watchdog,
    ) -> None:
        self.bootstrap = bootstrap
        self.deadline_s = deadline_s
        self.watchdog = watchdog
        self._security = dict(security)
        self._down_since_s: float | None = None
        self._refusal = ""
        self._closing = threading.Event()

    def settings(self) -> Settings:
        """Librdkafka settings that every client has."""
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "astra",
            "socket.nagle.disable": True,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.ms": 2,
            "error_cb": self.note,
            "logger": NATIVE_LOG,
            **self._security,
        }

    def note(self, error: KafkaError) -> None:
        """Remember what the client says about its connections."""
        if error.code() not in UNREACHABLE:
            return
        if error.code() in REFUSED:
            self._refusal = error.str()
        if self._down_since_s is None:
            self._down_since_s = time.monotonic()

    def answered(self) -> None:
        """The broker is there again."""
        self._down_since_s = None
        self._refusal = ""

    @property
    def down_s(self) -> float | None:
        """Seconds since the broker was last seen to be gone; None while it is there."""
        since_s = self._down_since_s
        return None if since_s is None else time.monotonic() - since_s

    def call(
        self,
        what: str,
        action: Callable[[float], Result],
        *,
        serve: Callable[[float], object] | None = None,
        deadline_s: float | None = None,
    ) -> Result:
        """Run ``action(timeout_s)``; retry what may be retried until the deadline.

        Args:
            what: Names the call in errors.
            action: The call; its argument is the time that is left, seconds.
            serve: Lets the client tell what it knows of its connections.
            deadline_s: Instead of the connection's own.

        Raises:
            FencedError: A newer instance does this work.
            TransientError: The deadline has passed.
            KafkaException: Any other error; a transaction's caller looks whether to abort.
        """
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        ends_s = time.monotonic() + deadline_s
        with self.watchdog.guard(deadline_s, f"{what} at kafka {self.bootstrap}"):
            while True:
                remaining_s = max(ends_s - time.monotonic(), 0.001)
                try:
                    result = action(remaining_s)
                except (FutureTimeoutError, NotYetError):
                    pass
                except KafkaException as exception:
                    self._require_retriable(what, exception)
                else:
                    self.answered()
                    return result
                if serve is not None:
                    serve(0)
                if time.monotonic() >= ends_s:
                    raise self.unreachable(what, deadline_s)
                self._closing.wait(RETRY_S)

    def unreachable(self, what: str, deadline_s: float | None = None) -> TransientError:
        """The one message for a broker that does not answer."""
        within_s = self.deadline_s if deadline_s is None else deadline_s
        return TransientError(
            f"kafka at {self.bootstrap} must answer within {within_s:g} s: "
            f'got "{self._refusal or self._try_to_connect()}" ({what}). '
            "Start it, or correct kafka.bootstrap."
        )

    def close(self) -> None:
        """End waits between retries, and the watchdog."""
        self._closing.set()
        self.watchdog.close()

    def _try_to_connect(self) -> str:
        host, _, port = self.bootstrap.split(",")[0].rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_S).close()
        except (OSError, ValueError) as error:
            return getattr(error, "strerror", None) or str(error)
        return "no answer"

    def _require_retriable(self, what: str, exception: KafkaException) -> None:
        error = error_of(exception)
        self.note(error)
        if error.txn_requires_abort():
            raise exception
        if error.fatal() or error.code() in FENCED:
            raise fenced(what, error) from exception
        if not error.retriable() and error.code() not in RETRIABLE:
            raise exception


def fenced(what: str, error: KafkaError) -> FencedError:
    """The error for a client that may not go on."""
    return FencedError(
        f"{what} must come from the newest instance: got {error.name()} ({error.str()}). "
        "Another instance does this work; stop this one."
    )


def refused(what: str, error: KafkaError) -> AstraStreamError:
    """The error for an answer that no retry changes."""
    return AstraStreamError(
        f"{what} must be accepted by kafka: got {error.name()} ({error.str()}). "
        "Look at the broker's log."
    )


def lost_place(partition: Partition, offset: int | None, error: KafkaError) -> AstraStreamError:
    """The error for a position that the client gives up.

    One that lies outside of the log comes with its offset. Without an offset the client only doubts
    it: by leader epochs it has taken a whole partition for a truncated one, after the broker was
    killed. The committed positions are then good; the log is asked for them by who starts there.

    Args:
        partition: Where.
        offset: The position, where the broker has refused it.
        error: What the client says.
    """
    if offset is not None:
        return missing_offset(partition, offset)
    return TransientError(
        f"{partition} must hold what was read of it: got {error.str()!r}. Start again from the "
        "committed positions; they are compared with the log."
    )
