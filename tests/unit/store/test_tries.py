"""How long a failing call goes on, and what is said of it."""

import logging
import threading

import pytest

from astra_stream.errors import TransientError
from astra_stream.store.tries import MAX_PAUSE_S, SAID_AFTER_S, Tries


class Hand:
    """A clock that moves while somebody pauses."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def monotonic_s(self) -> float:
        return self.at_s


class Pauses(threading.Event):
    """Never set; a wait moves the clock instead of taking time."""

    def __init__(self, clock: Hand) -> None:
        super().__init__()
        self._clock = clock
        self.taken_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.taken_s.append(timeout)
        self._clock.at_s += timeout
        return self.is_set()


@pytest.fixture
def pauses() -> Pauses:
    return Pauses(Hand())


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """What was logged, as level and message; a test before may have set up logging."""
    logger = logging.getLogger("astra_stream.store.tries")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.INFO, logger.name)
    monkeypatch.setattr(logger, "propagate", False)
    yield caplog
    logger.removeHandler(caplog.handler)


def make_tries(pauses: Pauses, *, deadline_s: float = 30.0) -> Tries:
    return Tries(
        "read 'key'",
        where="s3://b at here",
        deadline_s=deadline_s,
        clock=pauses._clock,
        closed=pauses,
    )


def fail_until(tries: Tries, pauses: Pauses, until_s: float) -> None:
    while pauses._clock.at_s < until_s:
        tries.again(OSError("503"))


def test_pauses_double_and_end_with_one_last_try_at_the_deadline(pauses: Pauses):
    rule = "s3://b at here must answer within 30 s: could not read 'key': got 503"
    with pytest.raises(TransientError, match=rule):
        fail_until(make_tries(pauses), pauses, 60.0)
    assert pauses.taken_s[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(pauses.taken_s) == MAX_PAUSE_S
    assert sum(pauses.taken_s) == pytest.approx(30.0)


def test_a_short_failure_is_nobodys_business(pauses: Pauses, said):
    tries = make_tries(pauses)
    fail_until(tries, pauses, SAID_AFTER_S - 1.6)
    tries.succeeded()
    assert said.records == []


def test_a_long_wait_is_said_once_and_its_end_once(pauses: Pauses, said):
    tries = make_tries(pauses)
    fail_until(tries, pauses, 20.0)
    assert [(r.levelname, r.getMessage()) for r in said.records] == [
        ("WARNING", "waiting for the store")
    ]
    warning = vars(said.records[0])
    assert (warning["store"], warning["asked"]) == ("s3://b at here", "read 'key'")
    assert warning["error"] == "503"
    assert warning["waited_s"] >= SAID_AFTER_S
    assert warning["gives_up_in_s"] == pytest.approx(30.0 - warning["waited_s"])
    tries.succeeded()
    tries.succeeded()
    assert [r.getMessage() for r in said.records[1:]] == ["the store answers again"]
    assert said.records[1].levelname == "INFO"


def test_whoever_is_closed_tries_no_more(pauses: Pauses):
    pauses.set()
    with pytest.raises(TransientError, match="could not read 'key': got 503"):
        make_tries(pauses).again(OSError("503"))
