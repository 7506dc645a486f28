"""A plan of strikes is decided by its seed, and keeps to its shares; a held process goes on."""

import sys
import threading
import time
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from astra_stream.local import chaos
from astra_stream.local.chaos import RARE_SHARE, Chaos, Strike, plan_strikes
from astra_stream.local.supervisor import Service, Supervisor

SERVICES = ("train", "rollout-0", "rollout-1", "scheduler")
SERVERS = ("kafka", "store")


def plan(num_strikes: int, seed: int) -> list[Strike]:
    return plan_strikes(
        SERVICES,
        SERVERS,
        num_strikes=num_strikes,
        mean_gap_s=8.0,
        broker="kafka",
        seed=seed,
    )


@given(num_strikes=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_pauses_and_broker_kills_are_a_tenth_and_only_services_are_stopped(num_strikes, seed):
    strikes = plan(num_strikes, seed)
    assert len(strikes) == num_strikes
    kinds = Counter(strike.kind for strike in strikes)
    assert kinds["pause"] + kinds["hold"] == num_strikes // RARE_SHARE
    assert 0 <= kinds["hold"] - kinds["pause"] <= 1
    assert sum(strike.name == "kafka" for strike in strikes) == num_strikes // RARE_SHARE
    assert sum(bool(strike.during) for strike in strikes) == kinds["hold"]
    assert all(strike.during in ("", *SERVICES) for strike in strikes)
    assert all(strike.name in SERVICES for strike in strikes if strike.kind != "kill")
    assert all(strike.after_s >= 0 for strike in strikes)


def test_the_seed_decides_the_plan():
    assert plan(50, 1) == plan(50, 1)
    assert plan(50, 1) != plan(50, 2)


def test_every_process_is_struck_in_the_long_run():
    assert {strike.name for strike in plan(200, 0)} == {*SERVICES, *SERVERS}


HOLDABLE = """
import sys, time
from pathlib import Path
from astra_stream.cli.holdable import hold
while True:
    asked = Path(sys.argv[1]).exists()
    before_s = time.monotonic()
    hold(Path(sys.argv[1]))
    if asked:
        print(time.monotonic() - before_s, flush=True)
    time.sleep(0.01)
"""


def struck(supervisor: Supervisor, *strikes: Strike, directory: Path) -> Chaos:
    found = Chaos(supervisor, strikes, hold_file=lambda name: directory / name)
    found.start()
    return found


def wait_until(condition) -> None:
    ends_s, pause = time.monotonic() + 20, threading.Event()
    while not condition():
        assert time.monotonic() < ends_s
        pause.wait(0.02)


def test_a_held_process_stops_itself_and_is_woken(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos, "PAUSE_S", 0.5)
    strike = Strike(after_s=0.0, name="service", kind="hold")
    argv = (sys.executable, "-c", HOLDABLE, str(tmp_path / "service"))
    with Supervisor(tmp_path / "logs") as supervisor:
        pid = supervisor.start(Service(name="service", argv=argv))
        done = struck(supervisor, strike, directory=tmp_path)
        wait_until(lambda: done.is_over)
        assert [strike for _, strike in done.done] == [strike]
        wait_until(lambda: supervisor.log_tail("service"))
        assert float(supervisor.log_tail("service")) > 0.4
        assert supervisor.pids() == {"service": pid}


def test_another_is_killed_while_a_process_is_held_which_goes_on_at_once(tmp_path):
    strike = Strike(after_s=0.0, name="broker", kind="kill", during="service")
    argv = (sys.executable, "-c", HOLDABLE, str(tmp_path / "service"))
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(Service(name="broker", argv=("sleep", "60")))
        pid = supervisor.start(Service(name="service", argv=argv))
        done = struck(supervisor, strike, directory=tmp_path)
        wait_until(lambda: [event.name for event in supervisor.exits()] == ["broker"])
        wait_until(lambda: supervisor.log_tail("service"))
        assert [strike for _, strike in done.done] == [strike]
        assert supervisor.pids()["service"] == pid


def test_who_is_asked_and_never_commits_was_not_struck(tmp_path):
    strike = Strike(after_s=0.0, name="service", kind="hold")
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    with Supervisor(tmp_path / "logs") as supervisor:
        supervisor.start(Service(name="service", argv=argv))
        done = struck(supervisor, strike, directory=tmp_path)
        wait_until((tmp_path / "service").exists)
        done.end()
        assert done.done == []
        assert not (tmp_path / "service").exists()
