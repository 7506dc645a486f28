"""Start processes that die with this one, and wait for processes without polling.

The kernel's parent-death signal follows the *thread* that started a child, not the process; so
one thread, which lives as long as the process, starts every child.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_CHILD_EXEC = Path(__file__).with_name("child_exec.py")
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


@dataclass(frozen=True)
class ProcessIdentity:
    """One process for good: a pid is used again, a pid with its start time is not."""

    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process."""

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The process that has ``pid`` now; None if there is none or it only waits to be reaped."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in "ZX" else cls(pid, int(fields[18]))

    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def send_signal(self, number: signal.Signals) -> bool:
        """Signal the process; False if it has gone."""
        pidfd = self._open()
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    def wait_gone(self, timeout_s: float) -> bool:
        """Block until the process has ended; False if it still runs after ``timeout_s``."""
        pidfd = self._open()
        if pidfd is None:
            return True
        try:
            return _wait_readable(pidfd, timeout_s)
        finally:
            os.close(pidfd)

    def _open(self) -> int | None:
        """Open a handle first and compare second, so that the pid cannot change hands between."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.is_alive():
            return pidfd
        os.close(pidfd)
        return None


def _wait_readable(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))


def spawn(
    argv: Sequence[str],
    *,
    log_path: Path,
    env: Mapping[str, str],
    directory: Path | None = None,
    detached: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, its output appended to ``log_path``.

    A session of its own keeps a terminal's Ctrl-C from reaching the child: its supervisor stops it.

    Args:
        argv: The program and its arguments.
        log_path: Receives stdout and stderr.
        env: Added to this process's environment.
        directory: The child's working directory.
        detached: Leave the child running when this process ends.

    Raises:
        OSError: The program (when detached), the log or the directory cannot be opened, or this
            process is ending.
    """
    tie = [] if detached else [sys.executable, "-I", "-S", str(_CHILD_EXEC), str(os.getpid())]
    with log_path.open("ab") as log:
        start = partial(
            subprocess.Popen,
            [*tie, *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            cwd=directory,
            start_new_session=True,
        )
        try:
            future = _spawner.submit(start)
        except RuntimeError as error:
            raise OSError(f"{argv[0]} must be started before this process ends") from error
        return future.result()


def wait_exit(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """Block until a child of this process has ended.

    Returns:
        Its exit code, negative for a signal; None if it still runs after ``timeout_s``.
    """
    pidfd = os.pidfd_open(process.pid)
    try:
        return process.wait() if _wait_readable(pidfd, timeout_s) else None
    finally:
        os.close(pidfd)


def log_tail(path: Path, *, since_bytes: int = 0, num_lines: int = 15) -> str:
    """The last lines of a log, of what was written after ``since_bytes``; empty if nothing was."""
    max_bytes = 16_384
    if not path.exists():
        return ""
    with path.open("rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(since_bytes, end - max_bytes, 0))
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-num_lines:])
