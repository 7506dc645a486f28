"""Every role dies at each of its effects on a real broker and a real store, all in one run.

What lies before an effect lies after the one before it: to the broker and the store these are one
point, so a role dies *after* each effect here, and on both sides of it in ``test_memory``. Of the
worker and the pipeline, that file alone has the effects that differ from others in the topic of a
record only: after each of their deaths their partitions wait for a session to time out.

The store and the broker die too, each once, in the middle of what the trainer does.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from astra_stream.local.supervisor import Service
from tests.crash.crashing import TRY_AGAIN, ZOMBIE_ENDED, Plan

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 6
DRIVER = Path(__file__).with_name("crashing.py")


def after(*effects: str) -> list[str]:
    return [f"after {effect}" for effect in effects]


PROCESSOR = ("fence", "write changelog", "positions changelog", "commit changelog")
DIES_AT = {
    "scheduler": after(
        *PROCESSOR,
        "write requests",
        "positions requests",
        "commit requests",
        "write outcomes",
        "commit outcomes",
    ),
    "rollout-0": after("fence", "commit alone", "positions trajectories", "commit trajectories"),
    "pipeline": after("fence", "write groups", "positions groups", "commit groups"),
    "assembler": after(*PROCESSOR, "write batches", "positions batches", "commit batches"),
    "train": after(
        "fence",
        "put weights/config.json",
        "put weights/model.safetensors",
        "put checkpoints/trainer_state.json",
        "put checkpoints/trainer_state.safetensors",
        "put checkpoints/index.json",
        "write weights",
        "write outcomes",
        "write metrics",
        "positions weights",
        "commit weights",
    ),
    "evaluator": after(
        *PROCESSOR,
        "write requests",
        "positions requests",
        "write evaluations",
        "commit evaluations",
    ),
}


STOPS_AT = {
    "scheduler": "after positions requests",
    "rollout-0": "after positions trajectories",
    "pipeline": "after positions groups",
    "assembler": "after positions batches",
    "train": "after positions weights",
    "evaluator": "after positions requests",
}
"""Between sending positions and committing them."""


@pytest.fixture
def plan(run: Any, lab: Any) -> Plan:
    servers = lab.stack.supervisor.pids()
    return Plan(
        directory=str(run.directory),
        commands={name: list(service.argv[3:]) for name, service in run.services.items()},
        dies_at=DIES_AT,
        stops_at={},
        kills_at={
            "train": {
                "before put weights/model.safetensors": servers["store"],
                "before positions weights": servers["kafka"],
            }
        },
    )


@pytest.fixture
def run(lab: Any) -> Any:
    return lab.run(
        steps=STEPS,
        **{
            "local.cores": 1,
            # Whoever plays a request dies, which looks as if the request did it.
            "rollout.max_deliveries": 100,
            "prompts.source.held_out": 10,
            "evaluate": {"every": 3},
            "policies.main.checkpoint": {"every": 2},
        },
    )


def carry_out(plan: Plan, run: Any) -> None:
    path = run.directory / "plan.json"
    path.write_text(json.dumps(dataclasses.asdict(plan)))
    env = run.services["train"].env
    argv = (sys.executable, str(DRIVER), str(path))
    run.supervisor.start(Service(name="crashes", argv=argv, env=env))
    assert run.finish() == {"crashes": 0}, run.supervisor.log_tail("crashes")


def test_a_run_whose_roles_die_after_each_of_their_effects_is_whole(run: Any, plan: Plan) -> None:
    carry_out(plan, run)
    for name, points in DIES_AT.items():
        reached = plan.reached(name).read_text().splitlines()
        assert sorted(reached) == sorted([*points, *plan.kills_at.get(name, {})]), name
    run.audit(steps=STEPS, retrain=True)
    evaluations = run.records(run.names.evaluations)
    evaluated = list(dict.fromkeys(e.requested_version.number for e in evaluations))
    assert evaluated == [0, 3, STEPS]


def test_a_zombie_of_every_role_changes_nothing(run: Any, plan: Plan) -> None:
    carry_out(dataclasses.replace(plan, dies_at={}, kills_at={}, stops_at=STOPS_AT), run)
    for name, point in STOPS_AT.items():
        ended = f"{ZOMBIE_ENDED}{TRY_AGAIN}"
        assert plan.reached(name).read_text().splitlines() == [point, ended], name
    run.audit(steps=STEPS, retrain=True)
