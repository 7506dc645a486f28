import subprocess
import sys
import threading

from astra_stream.log.watchdog import Watchdog


def test_a_call_that_overruns_is_reported_by_name() -> None:
    stuck, told = [], threading.Event()

    def note(what: str) -> None:
        stuck.append(what)
        told.set()

    watchdog = Watchdog(note, margin_s=0.01)
    with watchdog.guard(60.0, "slow but allowed"), watchdog.guard(0.01, "stuck"):
        assert told.wait(5.0)
    watchdog.close()
    assert stuck == ["stuck"]


def test_a_call_that_returns_is_not_reported() -> None:
    stuck: list[str] = []
    watchdog = Watchdog(stuck.append, margin_s=0.0)
    for _ in range(1000):
        with watchdog.guard(5.0, "quick"):
            pass
    watchdog.close()
    assert stuck == []


def test_time_in_our_own_code_is_not_counted() -> None:
    stuck, told = [], threading.Event()

    def note(what: str) -> None:
        stuck.append(what)
        told.set()

    watchdog = Watchdog(note, margin_s=0.0)
    with watchdog.guard(0.05, "call") as guard:
        with guard.suspended():
            assert not told.wait(0.1)
        assert told.wait(5.0)
    watchdog.close()
    assert stuck == ["call"]


def test_by_default_the_process_says_what_was_stuck_and_ends_with_75() -> None:
    program = (
        "import threading; from astra_stream.log.watchdog import Watchdog\n"
        "with Watchdog(margin_s=0.0).guard(0.01, 'commit at kafka h:1'): threading.Event().wait()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=15
    )
    assert ended.returncode == 75
    assert ended.stderr == (
        "commit at kafka h:1 must return in time: got stuck. Ending, to be started again.\n"
    )
