"""A small run whose processes, broker and store are struck at random, and its audit."""

import json

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

NUM_STRIKES = 25
MEAN_GAP_S = 2.0
STEPS = 80
"""More than a run makes while it is struck."""


def test_strikes_at_random_lose_nothing_and_change_no_weights(lab):
    path = lab.file(
        steps=STEPS,
        **{
            "rollout.workers": 2,
            "prompts.source.held_out": 10,
            "evaluate": {"every": 20},
            "policies.main.checkpoint": {"every": 5},
        },
    )
    struck = ("--kills", str(NUM_STRIKES), "--gap", str(MEAN_GAP_S), "--seed", "1")
    done = lab.astra("chaos", path, *struck, "--runs", lab.directory / "runs", "--json")
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["kills"] == NUM_STRIKES
    assert sum(kinds.get("hold", 0) for kinds in found["strikes"].values()) == 1
    assert sum(name.startswith("broker, in") for name in found["strikes"]) == 1
    assert found["versions"] == STEPS + 1
    assert (found["lost"], found["duplicated"], found["violations"]) == (0, 0, [])
    assert found["hashes_equal"]
