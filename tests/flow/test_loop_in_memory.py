"""The example that is the whole loop in one process, run for a few steps."""

import importlib.util
import threading
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from astra_stream.declarations import declared
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.records import Outcome
from astra_stream.store.memory import MemoryStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # torch and transformers are imported

EXAMPLE = Path(__file__).parents[2] / "examples" / "loop_in_memory.py"
CODEC = Codec(declared("schemas"))
STEPS = 4
GROUPS_PER_BATCH = 4


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loop_in_memory", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def log(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    loop = example.Loop(
        steps=STEPS,
        groups_per_batch=GROUPS_PER_BATCH,
        group_size=4,
        max_staleness=1,
        log=example.make_log(),
        store=MemoryStore(),
        codec=CODEC,
        directory=tmp_path_factory.mktemp("loop"),
        stop=threading.Event(),
    )
    example.run(loop, say=lambda _: None)
    return loop.log


def outcomes(example: ModuleType, log: MemoryLog) -> list[Outcome]:
    return [CODEC.decode(message.value) for message in log.records(example.TOPICS.outcomes)]


def test_every_version_is_announced_once_in_order_and_then_the_end(example, log) -> None:
    records = log.records(example.TOPICS.weights(example.POLICY))
    announced = [CODEC.decode(message.value) for message in records]
    assert [a.version.number for a in announced[:-1]] == list(range(STEPS + 1))
    assert announced[-1].kind == "final"
    assert len({a.root_hash for a in announced[:-1]}) == STEPS + 1


def test_every_group_that_was_asked_for_has_one_end(example, log) -> None:
    requests = [CODEC.decode(m.value) for m in log.records(example.TOPICS.requests())]
    ends = Counter(o.group_id for o in outcomes(example, log) if o.event in {"trained", "dropped"})
    assert ends == Counter(request.group_id for request in requests)


def test_each_step_trains_its_groups_and_none_that_is_too_old(example, log) -> None:
    trained = [o for o in outcomes(example, log) if o.event == "trained"]
    by_version = Counter(o.trained_version for o in trained)
    assert by_version == dict.fromkeys(range(STEPS), GROUPS_PER_BATCH)
    assert all(0 <= o.staleness <= 1 for o in trained)
    assert all(0 < sum(o.rewards) < len(o.rewards) for o in trained)


def test_nothing_was_left_unprocessed(example, log) -> None:
    assert log.records(example.TOPICS.dead_letters) == []
