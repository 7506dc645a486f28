import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from astra_stream.analysis import RunState, RunTail, summarise, write_summary
from astra_stream.cli import run_command
from astra_stream.cli.live import LiveView
from astra_stream.cli.report import carried_over
from astra_stream.cli.top import server_states, watch
from astra_stream.clock import FixedClock
from astra_stream.declarations import declared
from astra_stream.local.spawn import ProcessIdentity
from astra_stream.local.stack import StackInfo
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.log.names import TopicNames
from astra_stream.records import PolicyVersion, WeightAnnouncement

TOPICS = TopicNames("sums")
RUN_FILE = {
    "run": "sums",
    "steps": 4,
    "prompts": {"source": {"use": "jsonl", "path": "prompts.jsonl"}},
    "rollout": {"environment": {"use": "verifiable"}},
    "policies": {"main": {"model": "model", "batch": {"groups": 2}}},
}
GONE = ProcessIdentity(pid=2**22 + 1, start_ticks=1)


def stopped_stack() -> StackInfo:
    return StackInfo(
        bootstrap="127.0.0.1:1",
        store_url="s3://astra/runs",
        s3_endpoint="http://127.0.0.1:2",
        s3_access_key="key",
        s3_secret_key="secret",
        ports={},
        owner=None,
        servers={"kafka": GONE},
    )


def write_run(directory: Path) -> Path:
    (directory / "run.json").write_text(json.dumps(RUN_FILE))
    return directory


def announcement(kind: str) -> WeightAnnouncement:
    return WeightAnnouncement(
        policy="main",
        version=PolicyVersion(0, 0),
        kind=kind,
        root_hash="0" * 64,
        model_fingerprint="0" * 64,
        tensors=(),
        objects=(),
    )


def test_watching_ends_with_the_run() -> None:
    log = MemoryLog({TOPICS.weights("main"): 1, TOPICS.outcomes: 1, TOPICS.evaluations: 1})
    codec, clock, out = Codec(declared("schemas")), FixedClock(), io.StringIO()
    with log.writer("trainer").transaction() as txn:
        for kind in ("snapshot", "final"):
            txn.write(TOPICS.weights("main"), b"main", codec.encode(announcement(kind)))
    view = LiveView("sums", steps=4, clock=clock, console=Console(file=out, width=200))
    with RunTail(log, codec, topics=TOPICS, policy="main", clock=clock) as tail, view:
        watch(tail, view, is_evaluated=False, services=dict, stall=lambda _: "")
    assert [text.split("  ")[-1] for text in out.getvalue().splitlines()] == [
        "waiting for the first weights",
        "done",
    ]


def test_a_server_that_ended_is_shown_as_gone() -> None:
    assert server_states(stopped_stack()) == {"kafka": f"pid {GONE.pid}, gone"}
    assert server_states(None) == {}


def test_top_says_when_the_broker_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = dataclasses.asdict(stopped_stack())
    (write_run(tmp_path) / "stack.json").write_text(json.dumps(facts))
    assert run_command(["top", str(tmp_path), "--once"]) == 2
    assert "the run's broker must be running: got 127.0.0.1:1 stopped" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["top", "report"])
def test_a_directory_of_no_run_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([command, str(tmp_path)]) == 2
    assert "must be the directory of a run: got one without run.json" in capsys.readouterr().err


def test_report_shows_the_summary_where_the_topics_are_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = summarise(RunState(), run="sums", policy="main", wall_s=12.5)
    path = write_summary(summary, write_run(tmp_path))
    before = path.read_bytes()
    assert run_command(["report", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "12.5 s" in captured.out
    assert "shown from summary.json: directory must hold a stack" in captured.err
    assert path.read_bytes() == before


def test_report_as_json_is_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_summary(summarise(RunState(), run="sums", policy="main"), write_run(tmp_path))
    assert run_command(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())


def test_report_without_topics_and_summary_says_what_is_missing(tmp_path: Path) -> None:
    assert run_command(["report", str(write_run(tmp_path))]) == 2


def test_the_wall_time_is_carried_over_for_the_same_weights() -> None:
    summary = summarise(RunState(), run="sums", policy="main", wall_s=3.0)
    former = dataclasses.replace(summary, wall_s=99.0, services={"trainer": "exited 0"})
    assert carried_over(summary, former) == former
    other = dataclasses.replace(former, root_hash="f" * 64)
    assert carried_over(summary, other) == summary
    assert carried_over(summary, None) == summary
