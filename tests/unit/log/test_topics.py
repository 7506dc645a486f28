from dataclasses import replace
from pathlib import Path

import pytest

from astra_stream.errors import ConfigError
from astra_stream.log.memory import MemoryLog
from astra_stream.log.topics import apply, declared_topics, plan, read_declarations

DIRECTORY = Path(__file__).resolve().parents[3] / "topics"
DECLARATION = """
name = "<run>.things"
record = "prompt"
key = "prompt_id"
partitions = 2
cleanup = "delete"
retention = "7d"
why = "for a test"
"""


def declared(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "things.toml").write_text(text)
    return read_declarations(tmp_path)["things"].settings()


def test_a_run_has_the_topics_of_its_policies_pools_and_processors() -> None:
    topics = declared_topics(
        "run",
        ["main", "critic"],
        ["small"],
        {"run.scheduler.state.changelog": 1},
        directory=DIRECTORY,
    )
    partitions = {topic.name: topic.partitions for topic in topics}
    assert partitions["run.requests.small"] == 32
    assert partitions["run.trajectories.main"] == partitions["run.groups.critic"] == 4
    assert partitions["run.batches.main"] == partitions["run.weights.critic"] == 1
    assert partitions["run.scheduler.state.changelog"] == 1
    assert {"run.prompts", "run.outcomes", "run.dead-letters", "run.metrics"} < partitions.keys()
    assert not any("<" in name for name in partitions)


def test_nothing_that_is_owed_expires_and_the_broker_stamps() -> None:
    topics = declared_topics("run", ["main"], ["main"], {}, directory=DIRECTORY)
    loop = ("prompts", "requests", "trajectories", "groups", "batches", "weights", "outcomes")
    for topic in topics:
        assert topic.settings["message.timestamp.type"] == "LogAppendTime"
        if topic.name.split(".")[1] in loop:
            assert topic.settings["retention.ms"] == "-1"


def test_a_run_may_want_another_number_of_partitions() -> None:
    topics = declared_topics(
        "run", [], ["main"], {}, directory=DIRECTORY, partitions={"requests": 3}
    )
    assert {t.name: t.partitions for t in topics}["run.requests.main"] == 3
    with pytest.raises(ConfigError, match=r"must name a declared topic.*'request'"):
        declared_topics("run", [], [], {}, directory=DIRECTORY, partitions={"request": 3})


def test_a_plan_once_applied_is_empty() -> None:
    log = MemoryLog()
    topics = declared_topics("run", ["main"], ["main"], {"run.x.changelog": 4}, directory=DIRECTORY)
    changes = plan(topics, log.topics("run."))
    assert [change.kind for change in changes] == ["create"] * len(topics)
    apply(changes, log)
    assert plan(topics, log.topics("run.")) == []


def test_a_changed_setting_is_planned_and_said() -> None:
    log = MemoryLog()
    topics = declared_topics("run", [], [], {}, directory=DIRECTORY)
    apply(plan(topics, {}), log)
    wanted = replace(topics[0], settings={**topics[0].settings, "retention.ms": "5"})
    (change,) = plan([wanted], log.topics("run."))
    assert change.kind == "configure"
    assert change.detail == "retention.ms: 7776000000 -> 5"
    apply([change], log)
    assert log.topics("run.")[wanted.name].settings["retention.ms"] == "5"


def test_partitions_are_never_changed() -> None:
    log = MemoryLog({"run.outcomes": 3})
    topics = declared_topics("run", [], [], {}, directory=DIRECTORY)
    with pytest.raises(ConfigError, match=r"run\.outcomes has 3 and not 4"):
        plan(topics, log.topics("run."))


def test_durations_become_milliseconds(tmp_path: Path) -> None:
    assert declared(tmp_path, DECLARATION)["retention.ms"] == str(7 * 24 * 3600 * 1000)
    hours = declared(tmp_path, DECLARATION.replace("7d", "36h"))
    assert hours["retention.ms"] == str(36 * 3600 * 1000)


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ('key = "', 'keys = "', "keys must be a known key: got 'prompt_id'"),
        ("partitions = 2", "partitions = true", "partitions must be of type int: got True"),
        ("partitions = 2", "partitions = 0", "partitions must be at least 1: got 0"),
        ('cleanup = "delete"', 'cleanup = "keep"', "cleanup must be 'delete' or 'compact'"),
        ('"7d"', '"soon"', "retention must be 'forever' or a number with h or d: got 'soon'"),
        ('"7d"', '"xd"', "retention must be 'forever' or a number with h or d: got 'xd'"),
        ("partitions = 2", "", "must say partitions"),
        ("partitions = 2", "partitions =", "must be TOML"),
    ],
)
def test_a_bad_declaration_is_refused_by_file_and_key(
    tmp_path: Path, before: str, after: str, rule: str
) -> None:
    with pytest.raises(ConfigError, match=f"things.toml.* {rule}"):
        declared(tmp_path, DECLARATION.replace(before, after))


def test_a_directory_without_declarations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must have topic declarations"):
        read_declarations(tmp_path)
