"""What the embedded servers share: a child that is ready when a client of its own kind says so."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from astra_stream.errors import TransientError
from astra_stream.local.ports import LOOPBACK
from astra_stream.local.supervisor import Service, Supervisor

_RETRY_S = 0.05
_MAX_PROBE_S = 5.0
"""So that a server that ends in mid-probe is noticed soon."""


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    """An embedded server under a supervisor.

    ``probe(timeout_s)`` uses the server once as a client would; it returns None when that worked
    and otherwise the reason, and it is only called while ``port`` accepts connections.
    """

    service: Service
    port: int
    probe: Callable[[float], str | None]
    awaited: str
    """What being ready means, to be named when it does not come about."""

    def start(self, supervisor: Supervisor) -> int:
        """Start the server's process and return its pid; it is not ready yet."""
        return supervisor.start(self.service)

    def wait_ready(self, supervisor: Supervisor, *, timeout_s: float) -> None:
        """Block until a client can use the server.

        Raises:
            TransientError: The process ended, or ``timeout_s`` passed; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        reason = "no answer"
        while (left_s := deadline - time.monotonic()) > 0:
            if supervisor.has_ended(self.service.name, within_s=_RETRY_S):
                raise self._failure(supervisor, "its process ended")
            if not _accepts(self.port):
                reason = f"nothing listens on {LOOPBACK}:{self.port}"
            elif (answer := self.probe(min(left_s, _MAX_PROBE_S))) is None:
                return
            else:
                reason = answer
        raise self._failure(supervisor, f"{reason} after {timeout_s:.0f} s")

    def _failure(self, supervisor: Supervisor, reason: str) -> TransientError:
        name = self.service.name
        return failure(
            f"{name} must {self.awaited}: got {reason}. "
            f"Its log, {supervisor.log_path(name)}, ends:",
            supervisor.log_tail(name),
        )


def failure(message: str, tail: str) -> TransientError:
    """The error of a server that did not come up, its log's last lines indented below."""
    return TransientError("\n    ".join([message, *(tail.splitlines() or ["(nothing)"])]))


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1.0).close()
    except OSError:
        return False
    return True
