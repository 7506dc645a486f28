from pathlib import Path

import pytest

from astra_stream.cli.topics import apply_topics, planned_changes, run_topics
from astra_stream.config import RunConfig, load_run
from astra_stream.errors import ConfigError
from astra_stream.log.memory import MemoryLog

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "run.toml"


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return load_run(EXAMPLE)


def test_applying_makes_every_topic_and_then_nothing(config: RunConfig) -> None:
    log = MemoryLog()
    assert {c.kind for c in apply_topics(config, log)} == {"create"}
    assert sorted(log.topics("arithmetic.")) == [topic.name for topic in run_topics(config)]
    assert apply_topics(config, log) == []


def test_planning_makes_nothing(config: RunConfig) -> None:
    log = MemoryLog()
    assert len(planned_changes(config, log)) == len(run_topics(config))
    assert log.topics("") == {}


def test_a_changelog_has_the_partitions_of_the_input_that_it_follows(config: RunConfig) -> None:
    counts = {topic.name: topic.partitions for topic in run_topics(config)}
    followed = counts["arithmetic.trajectories.main"]
    assert counts["arithmetic.pipeline.main.state.changelog"] == followed > 1
    assert counts["arithmetic.scheduler.state.changelog"] == 1
    assert counts["arithmetic.assembler.main.state.changelog"] == 1


def test_another_number_of_partitions_is_refused(config: RunConfig) -> None:
    log = MemoryLog({"arithmetic.trajectories.main": 3})
    with pytest.raises(ConfigError, match=r"arithmetic\.trajectories\.main has 3 and not"):
        apply_topics(config, log)
