"""A plan of strikes is decided by its seed, and keeps to its shares."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from astra_stream.local.chaos import RARE_SHARE, Strike, plan_strikes

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
    assert kinds["pause"] == num_strikes // RARE_SHARE
    assert sum(strike.name == "kafka" for strike in strikes) == num_strikes // RARE_SHARE
    assert all(strike.name in SERVICES for strike in strikes if strike.kind != "kill")
    assert all(strike.after_s >= 0 for strike in strikes)


def test_the_seed_decides_the_plan():
    assert plan(50, 1) == plan(50, 1)
    assert plan(50, 1) != plan(50, 2)


def test_every_process_is_struck_in_the_long_run():
    assert {strike.name for strike in plan(200, 0)} == {*SERVICES, *SERVERS}
