import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from astra_stream.analysis import (
    RunState,
    read_summary,
    summarise,
    summary_json,
    summary_table,
    write_summary,
)
from astra_stream.errors import ConfigError

PROMISED = {
    "steps",
    "samples",
    "tokens",
    "reward_first",
    "reward_last",
    "accuracy_before",
    "accuracy_after",
    "staleness_p50",
    "staleness_max",
    "wall_s",
    "time_share",
}


def test_a_run_is_summed_up(records: SimpleNamespace) -> None:
    state = records.trained_state(10, step_s=2.0)
    state.fold(records.evaluate(0, 0.5), at_s=1001.0)
    state.fold(records.evaluate(10, 0.9, final=True), at_s=1025.0)
    s = summarise(state, run="sums", policy="main", wall_s=30.0)
    assert (s.steps, s.samples, s.tokens) == (10, 80, 1000)
    assert s.reward_first == pytest.approx(0.03)
    assert s.reward_last == pytest.approx(0.08)
    assert (s.accuracy_before, s.accuracy_after) == (0.5, 0.9)
    assert (s.staleness_p50, s.staleness_max) == (1, 2)
    assert (s.wall_s, s.training_s) == (30.0, 20.0)
    assert s.time_share["waiting_for_rollouts"] == pytest.approx(0.5)
    assert s.groups_trained == 40
    assert (s.version, s.root_hash) == ("v10", f"{10:064x}")


def test_the_promised_keys_are_there_from_the_start() -> None:
    facts = summary_json(summarise(RunState(), run="sums", policy="main"))
    assert facts.keys() >= PROMISED
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["reward_first"] is None
    assert facts["wall_s"] == 0.0


def test_one_evaluation_is_only_the_one_before(records: SimpleNamespace) -> None:
    state = records.trained_state(2)
    state.fold(records.evaluate(0, 0.5), at_s=1001.0)
    s = summarise(state, run="sums", policy="main")
    assert (s.accuracy_before, s.accuracy_after) == (0.5, None)


def test_a_score_without_valid_samples_is_null(records: SimpleNamespace) -> None:
    state = RunState()
    state.fold(records.evaluate(0, math.nan), at_s=1.0)
    facts = summary_json(summarise(state, run="sums", policy="main"))
    assert facts["accuracy_before"] is None
    assert facts["evaluations"][0]["mean_at_k"] is None


def test_without_a_wall_time_the_records_span_it(records: SimpleNamespace) -> None:
    state = records.trained_state(3, step_s=2.0)
    state.fold(records.evaluate(3, 0.9, final=True), at_s=1010.0)
    assert summarise(state, run="sums", policy="main").wall_s == 10.0


def test_a_written_summary_is_read_back(records: SimpleNamespace, tmp_path: Path) -> None:
    state = records.trained_state(3)
    state.fold(records.evaluate(0, 0.5), at_s=1001.0)
    state.fold(records.decide("dropped", reason="uniform"), at_s=1002.0)
    summary = summarise(state, run="sums", policy="main", services={"trainer": "exited 0"})
    assert write_summary(summary, tmp_path) == tmp_path / "summary.json"
    assert read_summary(tmp_path) == summary


def test_a_directory_without_a_summary_has_none(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None


@pytest.mark.parametrize("text", ["{", "[]", '{"evaluations": []}', '{"evaluations": [{"a": 1}]}'])
def test_another_file_in_its_place_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ConfigError, match="must be the summary of a run: got"):
        read_summary(tmp_path)


def test_the_table_tells_a_run_in_words(records: SimpleNamespace) -> None:
    state = records.trained_state(200, step_s=1.0)
    state.fold(records.evaluate(0, 0.765), at_s=1001.0)
    state.fold(records.evaluate(200, 0.966, final=True), at_s=1202.0)
    state.fold(records.decide("dropped", reason="uniform"), at_s=1002.0)
    state.fold(records.close("steps_done", 900), at_s=1200.0)
    state.fold(records.announce(200, kind="final"), at_s=1200.0)
    summary = summarise(state, run="sums", policy="main", wall_s=215.0)
    table = dict(summary_table(summary, steps=200))
    assert table["steps"] == "200 of 200"
    assert table["samples"] == "1,600 (8/s)"
    assert table["reward"] == "0.030 → 1.980"
    assert table["held-out accuracy"] == "0.765 → 0.966"
    assert table["staleness"] == "p50 1, max 2 versions"
    assert table["groups dropped"] == "1 uniform"
    assert table["wall time"] == "3 min 35 s"
    assert table["trainer's time"] == "50% waiting for rollouts, 25% step, 25% other"
    assert table["weights"] == f"v200 {f'{200:064x}'[:12]}"
    assert "services" not in table


def test_the_table_says_when_a_run_did_not_finish(records: SimpleNamespace) -> None:
    summary = summarise(records.trained_state(3), run="sums", policy="main")
    assert dict(summary_table(summary))["steps"] == "3, not finished"
    ended = dataclasses.replace(summary, is_final=True, closed="no_signal: uniform")
    assert dict(summary_table(ended))["steps"] == "3, ended by no_signal: uniform"


def test_the_table_of_nothing_is_a_table() -> None:
    summary = summarise(RunState(), run="sums", policy="main")
    assert dict(summary_table(summary, steps=5))["reward"] == "- → -"
