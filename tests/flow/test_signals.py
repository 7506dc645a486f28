"""The first signal drains, the second ends at once: with real processes, and no broker."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astra_stream.local.spawn import ProcessIdentity

SCRIPTS = Path(__file__).with_name("signalled")
PATIENCE_S = 15.0
"""Far less than the grace of what is started."""

Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.timeout(90)


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """What the process says until it has said ``last``."""
    said = []
    for line in process.stdout:
        said.append(line.strip())
        if said[-1] == last:
            return said
    pytest.fail(f"the process must say {last!r}: got its end. {process.stderr.read()}")


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def start_script(name: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, SCRIPTS / name, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_script
    for process in started:
        process.kill()
        process.communicate()


def test_a_worker_that_is_told_to_stop_writes_what_it_finishes_and_ends_with_0(start: Start):
    process = start("worker.py", "short")
    lines_until(process, "working")
    process.send_signal(signal.SIGTERM)
    lines_until(process, "2 samples")
    assert process.wait(PATIENCE_S) == 0


def test_a_second_signal_ends_a_worker_that_drains(start: Start):
    process = start("worker.py", "endless")
    lines_until(process, "working")
    process.send_signal(signal.SIGTERM)
    lines_until(process, "draining")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_a_second_signal_ends_a_service_that_is_inside_a_call_of_its_client(start: Start):
    process = start("inside_a_call.py")
    lines_until(process, "working")
    process.send_signal(signal.SIGTERM)
    lines_until(process, "draining")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stops_its_children_at_the_first_signal_and_ends_with_them_at_the_second(
    start: Start, tmp_path: Path, first: signal.Signals
):
    process = start("run.py", str(tmp_path))
    pid, _ = lines_until(process, "working")
    child = ProcessIdentity.of(int(pid))
    process.send_signal(first)
    lines_until(process, "stopping")
    assert child.is_alive()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert child.wait_gone(PATIENCE_S)
