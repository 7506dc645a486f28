"""Free ports on the loopback interface, remembered ones first.

A port is only taken while its server listens: not in the seconds after it was chosen, nor while a
killed server is started again. A reservation keeps other stacks from choosing it meanwhile.
"""

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType

from astra_stream.errors import TransientError

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20_000, 31_999
"""Below the range from which Linux takes the ports of outgoing connections."""
_NUM_TRIES = 200


class PortReservation:
    """One free port per name, kept from other stacks until it is closed or this process ends.

    Args:
        names: What the ports are for.
        remembered: Ports of an earlier start; each is taken again if it is still free.

    Raises:
        TransientError: No free port was found.
    """

    def __init__(self, names: Sequence[str], *, remembered: Mapping[str, int]) -> None:
        self.ports: dict[str, int] = {}
        """Name to port."""
        with ExitStack() as held:
            for name in names:
                self.ports[name] = _reserve(name, remembered.get(name), held)
            self._held = held.pop_all()

    def __enter__(self) -> dict[str, int]:
        return self.ports

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let other stacks have the ports."""
        self._held.close()


def _reserve(name: str, remembered: int | None, held: ExitStack) -> int:
    drawn = (_FIRST + secrets.randbelow(_LAST - _FIRST + 1) for _ in range(_NUM_TRIES))
    for port in drawn if remembered is None else (remembered, *drawn):
        claim = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            # An abstract name is visible to the whole machine and vanishes with its socket.
            claim.bind(f"\0astra-port-{port}")
            if is_free(port):
                held.callback(os.close, claim.detach())
                return port
        claim.close()
    raise TransientError(
        f"port for {name} must be free: got none in {_NUM_TRIES} tries between {_FIRST} and "
        f"{_LAST} on {LOOPBACK}. Stop what listens there."
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # As servers do: an old connection that lingers does not take the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
