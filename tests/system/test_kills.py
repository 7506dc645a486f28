"""Services and broker are killed while a run goes on: nothing is lost or done twice."""

import signal

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

KILLED_AT = {1: "scheduler", 2: "pipeline", 4: "assembler", 5: "rollout-0", 7: "evaluator"}
"""Version whose announcement is the signal, and who dies."""


def died(run):
    return {event.name for event in run.supervisor.exits() if event.code == -signal.SIGKILL}


def test_every_service_and_the_broker_are_killed_once_and_every_sample_has_one_outcome(lab):
    changes = {"prompts.source.held_out": 10, "evaluate": {"every": 4}}
    run = lab.run(steps=14, **changes)
    run.start()
    for version, name in KILLED_AT.items():
        run.wait_for_version(version)
        run.supervisor.kill(name)
    run.wait_for_version(9)
    run.supervisor.kill("train")
    run.wait_for_version(11)
    lab.stack.supervisor.kill("kafka")
    codes = run.finish()
    assert set(codes.values()) == {0}, codes
    assert died(run) == {*KILLED_AT.values(), "train"}
    run.audit(steps=14, retrain=True)
    evaluated = [e.requested_version.number for e in run.records(run.names.evaluations)]
    assert evaluated == sorted(set(evaluated))
    assert {0, 14} <= set(evaluated)
