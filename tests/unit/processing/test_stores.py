"""State in a file is the changelog's state, whatever happened to the file."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_stream.clock import FixedClock
from astra_stream.errors import ConfigError, FencedError, TransientError
from astra_stream.log.memory import MemoryLog
from astra_stream.log.processor import Forget, Keep
from astra_stream.processing import stores
from astra_stream.processing.state import Changelog
from astra_stream.processing.stores import FileStore, files_of

TOPIC = "t.changelog"
STEPS = st.lists(
    st.one_of(
        st.builds(Keep, st.sampled_from("abcdef"), st.integers(0, 9)),
        st.builds(Forget, st.sampled_from("abcdef")),
        st.just("crash"),
        st.just("flush"),
    ),
    max_size=30,
)


class HandClock(FixedClock):
    """Goes on when it is told to."""

    def advance(self, by_s: float) -> None:
        self._at_s += by_s


class Process:
    """A processor's state, and what its transactions write."""

    def __init__(self, log: MemoryLog, clock: HandClock, directory: Path) -> None:
        self.log = log
        self.clock = clock
        self.changelog = Changelog(log, TOPIC, writer="0", clock=clock, directory=directory)
        self.state = self.changelog.restore([0])[0]

    def do(self, *effects: Keep | Forget) -> None:
        for effect in effects:
            if isinstance(effect, Keep):
                self.state[effect.key] = effect.value
            else:
                self.state.pop(effect.key, None)
        with self.log.writer("p").transaction() as txn:
            for key, value in self.changelog.entries(0, effects):
                txn.write(TOPIC, key, value, partition=0)
        self.changelog.committed()

    def flush(self) -> None:
        self.clock.advance(stores.FLUSH_S + 1)
        self.do()
        self.do(Keep("flushed", True))

    @property
    def start(self) -> int:
        return self.changelog._stores[0].start


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog({TOPIC: 1})


@pytest.fixture
def clock() -> HandClock:
    return HandClock(1000.0)


def path_in(directory: Path) -> Path:
    return directory / f"{TOPIC}.0.sqlite"


@settings(max_examples=30, deadline=None)
@given(steps=STEPS)
def test_a_state_in_a_file_is_what_the_effects_add_up_to(tmp_path_factory, steps):
    log, clock, directory = (
        MemoryLog({TOPIC: 1}),
        HandClock(1000.0),
        tmp_path_factory.mktemp("state"),
    )
    process, expected = Process(log, clock, directory), {}
    for step in [*steps, "crash"]:
        if step == "crash":
            process = Process(log, clock, directory)
        elif step == "flush":
            process.flush()
            expected["flushed"] = True
        else:
            process.do(step)
            if isinstance(step, Keep):
                expected[step.key] = step.value
            else:
                expected.pop(step.key, None)
        assert dict(process.state) == expected
    assert dict(Process(log, clock, directory).state) == expected


def test_a_restart_reads_the_changelog_only_from_where_the_file_ends(log, clock, tmp_path):
    process = Process(log, clock, tmp_path)
    process.do(Keep("a", 1))
    process.flush()
    process.do(Keep("b", 2))
    again = Process(log, clock, tmp_path)
    assert again.start > 0
    assert dict(again.state) == {"a": 1, "flushed": True, "b": 2}
    assert again.state["a"] == 1


def test_what_was_not_committed_is_not_there_after_a_crash(log, clock, tmp_path):
    process = Process(log, clock, tmp_path)
    process.do(Keep("a", 1))
    process.state["a"] = 2
    process.changelog.entries(0, [Keep("a", 2)])
    assert dict(Process(log, clock, tmp_path).state) == {"a": 1}


@pytest.mark.parametrize("moved_s", [stores.MAX_AGE_S + 1, -60.0])
def test_a_file_older_than_tombstones_or_of_tomorrow_is_made_anew(log, clock, tmp_path, moved_s):
    process = Process(log, clock, tmp_path)
    process.do(Keep("a", 1))
    process.flush()
    clock.advance(moved_s)
    again = Process(log, clock, tmp_path)
    assert again.start == 0
    assert dict(again.state) == {"a": 1, "flushed": True}


def test_a_file_of_a_changelog_that_was_made_anew_is_not_used(clock, tmp_path):
    process = Process(MemoryLog({TOPIC: 1}), clock, tmp_path)
    process.do(Keep("a", 1))
    process.flush()
    assert dict(Process(MemoryLog({TOPIC: 1}), clock, tmp_path).state) == {}


def test_whoever_opens_a_file_fences_the_process_that_had_it(log, clock, tmp_path):
    zombie = Process(log, clock, tmp_path)
    zombie.do(Keep("a", 1))
    successor = Process(log, clock, tmp_path)
    successor.do(Keep("a", 2))
    with pytest.raises(FencedError, match="must be this process"):
        zombie.flush()
    successor.flush()
    assert Process(log, clock, tmp_path).state["a"] != 1


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_is_made_anew_or_is_still_right(log, clock, tmp_path, seed):
    process = Process(log, clock, tmp_path)
    for number in range(200):
        process.do(Keep(f"key-{number}", "x" * 50))
    process.flush()
    expected = dict(process.state)
    process.changelog.close()
    rng, path = random.Random(seed), path_in(tmp_path)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 50])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data[: rng.choice([len(data), len(data) // 2])])
    assert dict(Process(log, clock, tmp_path).state) == expected


def test_damage_to_an_open_file_ends_the_process(log, clock, tmp_path):
    process = Process(log, clock, tmp_path)
    process.do(Keep("a", 1))
    process.flush()
    process.changelog._stores[0]._file.execute("UPDATE entry SET value = x'00'")
    with pytest.raises(TransientError, match="made anew"):
        process.state["a"]


def test_memory_stays_bounded_while_a_large_changelog_is_read(log, clock, tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "FLUSH_BYTES", 10_000)
    process = Process(log, clock, tmp_path)
    for number in range(300):
        process.do(Keep(f"key-{number}", "x" * 100))
    process.changelog.close()
    for path in files_of(path_in(tmp_path)):
        path.unlink(missing_ok=True)
    again = Process(log, clock, tmp_path)
    assert again.changelog._stores[0]._num_bytes <= 10_000
    assert len(again.state) == 300


def test_a_directory_that_cannot_be_written_is_named(clock, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="must be writable"):
        FileStore(tmp_path / "file" / "state.sqlite", topic_id="t", clock=clock)
