import os
import signal
import subprocess
import sys

import pytest

from astra_stream.local.spawn import ProcessIdentity
from astra_stream.local.supervisor import Service, Supervisor

FOREVER = "echo up; exec sleep 60"
STUBBORN = "trap '' TERM; echo up; while :; do sleep 60; done"


@pytest.fixture
def supervisor(tmp_path):
    with Supervisor(tmp_path, grace_s=0.2, max_restarts=2) as supervisor:
        yield supervisor


def shell(name, script, **options):
    return Service(name=name, argv=("/bin/sh", "-c", script), **options)


def wait_for_line(path, text):
    """Block until a child has written a line."""
    with subprocess.Popen(["tail", "-n", "+1", "-F", path], stdout=subprocess.PIPE) as tail:
        for line in tail.stdout:
            if text in line.decode():
                break
        tail.kill()


def test_a_child_that_finishes_is_reported_with_its_code(supervisor):
    supervisor.start(shell("worker", "exit 3"))
    [event] = supervisor.events()
    assert (event.name, event.code, event.restarted, event.expected) == ("worker", 3, False, False)
    assert supervisor.wait() == {"worker": 3}


def test_a_child_that_says_try_again_is_restarted_until_it_does_so_too_often(tmp_path):
    supervisor = Supervisor(tmp_path, max_restarts=1)
    supervisor.start(shell("worker", "echo no broker; exit 75"))
    events = list(supervisor.events())
    assert [event.restarted for event in events] == [True, False]
    assert all(event.log_tail == "no broker" for event in events)


def test_a_killed_child_is_restarted(supervisor):
    pid = supervisor.start(shell("worker", FOREVER))
    supervisor.kill("worker")
    event = next(supervisor.events())
    assert (event.code, event.restarted) == (-signal.SIGKILL, True)
    assert supervisor.pids()["worker"] != pid


def test_a_stopped_child_stays_down(supervisor):
    supervisor.start(shell("worker", FOREVER))
    wait_for_line(supervisor.log_path("worker"), "up")
    assert supervisor.stop() == {"worker": -signal.SIGTERM}
    [event] = supervisor.events()
    assert event.expected
    assert not event.restarted


def test_a_child_that_ignores_the_stop_is_killed_after_the_grace(supervisor):
    supervisor.start(shell("worker", STUBBORN))
    wait_for_line(supervisor.log_path("worker"), "up")
    assert supervisor.stop() == {"worker": -signal.SIGKILL}


def test_stages_stop_in_order(supervisor):
    trap = "trap 'exit 0' TERM; echo up; sleep 60 & wait"
    supervisor.start(shell("server", trap, stop_stage=1))
    supervisor.start(shell("worker", trap))
    for name in ("server", "worker"):
        wait_for_line(supervisor.log_path(name), "up")
    supervisor.stop()
    assert [event.name for event in supervisor.events()] == ["worker", "server"]


def test_only_the_named_children_are_stopped(supervisor):
    for name in ("one", "two"):
        supervisor.start(shell(name, FOREVER))
        wait_for_line(supervisor.log_path(name), "up")
    assert supervisor.stop([]) == {}
    assert supervisor.stop(["one"]) == {"one": -signal.SIGTERM}
    assert list(supervisor.pids()) == ["two"]


def test_what_a_child_leaves_in_its_group_is_swept(supervisor):
    supervisor.start(shell("worker", "sleep 60 & echo left $!; exit 0"))
    supervisor.wait()
    left = int(supervisor.log_path("worker").read_text().split()[1])
    identity = ProcessIdentity.of(left)
    assert identity is None or identity.wait_gone(5.0)


def test_a_terminal_interrupt_does_not_reach_a_child(supervisor):
    pid = supervisor.start(shell("worker", FOREVER))
    assert os.getsid(pid) == os.getpgid(pid) == pid


def test_the_log_tail_is_of_this_start_only(tmp_path):
    supervisor = Supervisor(tmp_path)
    supervisor.start(shell("worker", "echo first"))
    supervisor.wait()
    supervisor.start(shell("worker", "echo second"))
    supervisor.wait()
    assert supervisor.log_tail("worker") == "second"
    assert (tmp_path / "worker.log").read_text() == "first\nsecond\n"


def test_a_program_that_is_not_there_is_named(supervisor):
    supervisor.start(Service(name="worker", argv=("/no/such/program",)))
    [event] = supervisor.events()
    assert event.log_tail == "/no/such/program cannot be run: No such file or directory"


def test_a_name_in_use_is_refused(supervisor):
    supervisor.start(shell("worker", FOREVER))
    with pytest.raises(ValueError, match="service name must be free: got 'worker'"):
        supervisor.start(shell("worker", FOREVER))


def test_the_environment_is_added_to(supervisor):
    supervisor.start(shell("worker", "echo $ASTRA_TEST $HOME", env={"ASTRA_TEST": "x"}))
    supervisor.wait()
    assert supervisor.log_tail("worker") == f"x {os.environ['HOME']}"


STARTER = """
import sys, threading
from pathlib import Path
from astra_stream.local.supervisor import Service, Supervisor
supervisor = Supervisor(Path(sys.argv[1]))
service = Service(name="worker", argv=("/bin/sleep", "60"))
starter = threading.Thread(target=lambda: print(supervisor.start(service), flush=True))
starter.start()
starter.join()
sys.stdin.read()
"""


def start_a_supervisor(directory):
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    child = ProcessIdentity.of(int(process.stdout.readline()))
    return process, child


def end(process):
    process.stdin.close()
    process.stdout.close()
    process.wait()


def test_a_killed_supervisor_leaves_no_orphan(tmp_path):
    process, child = start_a_supervisor(tmp_path)
    process.kill()
    assert child.wait_gone(5.0)
    end(process)


def test_a_child_outlives_the_thread_that_asked_for_it_and_not_the_process(tmp_path):
    process, child = start_a_supervisor(tmp_path)
    assert not child.wait_gone(0.1)
    end(process)
    assert process.returncode == 0
    assert child.wait_gone(5.0)
