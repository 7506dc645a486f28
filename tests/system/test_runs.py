"""Whole runs on a real broker and a real S3 server: that they learn, and only from their rewards."""

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]

POLICY = "main"


def test_services_start_in_any_order_and_a_rate_of_zero_changes_nothing(lab):
    run = lab.run(steps=5, **{"policies.main.optimizer": {"lr": 0.0}})
    run.start("assembler", "rollout-0", "pipeline", "train")
    run.wait_for_version(0)
    run.start("scheduler")
    assert set(run.finish().values()) == {0}
    audit = run.audit(steps=5)
    assert len(set(audit.root_hashes)) == 1
    announced = run.records(run.names.weights(POLICY))[1:-1]
    assert len(announced) == 5
    assert max(a.train_metrics["ratio_max_abs_log"] for a in announced) <= 1e-4
