"""What a trainer finds when it starts again: checkpoints, batches, announcements and objects."""

import json

import pytest

from astra_stream.declarations import declared
from astra_stream.errors import AstraStreamError, RecordError, SchemaError, WeightsError
from astra_stream.log.codec import Codec
from astra_stream.log.interface import Partition, TopicSettings
from astra_stream.log.memory import MemoryLog
from astra_stream.store.memory import MemoryStore
from tests.unit.training.test_service import (
    POLICY,
    TOPICS,
    announced,
    make_trainer,
    topics,
    trained,
    write_batches,
)

CODEC = Codec(declared("schemas"))
BATCHES, WEIGHTS = TOPICS.batches(POLICY), TOPICS.weights(POLICY)


class FragileStore(MemoryStore):
    """Lets a test damage what it holds."""

    def damage(self, key: str, change) -> None:
        data = change(self.get(key, max_bytes=1 << 30))
        self.delete(key)
        if data is not None:
            self.put(key, data)

    def keys(self, prefix: str) -> list[str]:
        return [found.key for found in self.list(prefix)]


def flip(data: bytes) -> bytes:
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


DAMAGES = {
    "flipped": flip,
    "cut": lambda data: data[:-3],
    "longer": lambda data: data + b"x",
    "empty": lambda _: b"",
    "gone": lambda _: None,
}
damages = pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)


@pytest.fixture
def stopped(tmp_path):
    """A log and a store after five of eight batches, with checkpoints of versions 2 and 4."""
    log, store = MemoryLog(topics()), FragileStore()
    write_batches(log, 5, last=False)
    stop_after(make_trainer(log, store, tmp_path / "first"), 5)
    assert [a.version.number for a in announced(log)] == [0, 1, 2, 3, 4, 5]
    return log, store


def stop_after(trainer, number: int) -> None:
    """Run until a version is announced."""
    step = trainer._backend.step

    def counted(batch):
        if batch.trains_version == number - 1:
            trainer._stop.set()
        return step(batch)

    trainer._backend.step = counted
    trainer.run()
    trainer._wait_for_publishing()


def goes_on(log, store, directory) -> None:
    """A new trainer reproduces what was announced and trains the next batch in the same lineage."""
    before = announced(log)
    write_batches_from(log, 5, 6)
    stop_after(make_trainer(log, store, directory), 6)
    after = announced(log)
    assert len(after) == len(before) + 1
    assert [a.version for a in after] == [(0, number) for number in range(7)]
    groups = [outcome.group_id for outcome in trained(log)]
    assert len(groups) == len(set(groups)) == 12


def write_batches_from(log, first: int, end: int) -> None:
    """Batches ``first`` to ``end``; ``write_batches`` writes from the first on."""
    scratch = MemoryLog(topics())
    write_batches(scratch, end, last=False)
    with log.writer("assembler").transaction() as txn:
        for message in scratch.records(BATCHES)[first:end]:
            txn.write(BATCHES, message.key, message.value, partition=0)


def test_undamaged_it_goes_on(stopped, tmp_path):
    goes_on(*stopped, tmp_path)


@damages
@pytest.mark.parametrize("part", ["index", "state"])
def test_a_checkpoint_that_is_not_whole_is_passed_over_for_the_one_before(
    stopped, tmp_path, part, change, caplog
):
    log, store = stopped
    index = announced(log)[4].checkpoint
    files = json.loads(store.get(index, max_bytes=1 << 20))["files"]
    key = index if part == "index" else files["state.json"]["key"]
    store.damage(key, change)
    goes_on(log, store, tmp_path)
    assert key in "".join(getattr(record, "reason", "") for record in caplog.records)


@damages
def test_without_any_whole_checkpoint_all_batches_are_trained_again(stopped, tmp_path, change):
    log, store = stopped
    keys = {one.checkpoint for one in announced(log) if one.checkpoint}
    assert keys
    for key in keys:
        store.damage(key, change)
    goes_on(log, store, tmp_path)


def test_an_index_of_another_checkpoint_under_the_key_is_not_used(stopped, tmp_path):
    log, store = stopped
    older = store.get(announced(log)[2].checkpoint, max_bytes=1 << 20)
    store.damage(announced(log)[4].checkpoint, lambda _: older)
    goes_on(log, store, tmp_path)


def test_an_object_of_the_newest_version_that_is_gone_is_uploaded_again(stopped, tmp_path):
    log, store = stopped
    (key,) = store.keys("weights/main/0/00000005")
    data = store.get(key, max_bytes=1 << 20)
    store.delete(key)
    goes_on(log, store, tmp_path)
    assert store.get(key, max_bytes=1 << 20) == data


@pytest.mark.parametrize("name", ["flipped", "cut", "longer", "empty"])
def test_an_object_of_the_newest_version_that_is_damaged_is_named(stopped, tmp_path, name):
    log, store = stopped
    (key,) = store.keys("weights/main/0/00000005")
    store.damage(key, DAMAGES[name])
    with pytest.raises(WeightsError, match=f"object '{key}' in memory must keep its bytes"):
        make_trainer(log, store, tmp_path).run()
    store.delete(key)
    goes_on(log, store, tmp_path / "again")


def remake(log, topic: str) -> None:
    log.delete(topic)
    log.create([TopicSettings(name=topic, partitions=1, settings={})])


def without_checkpoints(store) -> None:
    for key in store.keys("checkpoints/"):
        store.delete(key)


def test_batches_that_are_gone_end_the_trainer_instead_of_a_wait(stopped, tmp_path):
    log, store = stopped
    remake(log, BATCHES)
    without_checkpoints(store)
    rule = r"must hold the batches of every version announced, up to v5: got those up to v0"
    with pytest.raises(AstraStreamError, match=rule):
        make_trainer(log, store, tmp_path).run()


def test_batches_made_anew_that_go_on_in_number_are_refused(stopped, tmp_path):
    log, store = stopped
    remake(log, BATCHES)
    without_checkpoints(store)
    write_batches_from(log, 5, 8)
    with pytest.raises(RecordError, match=r"must train version 0: got 5\. The batches topic skips"):
        make_trainer(log, store, tmp_path).run()


def test_batches_shorter_than_the_checkpoints_place_are_refused(stopped, tmp_path):
    log, store = stopped
    remake(log, BATCHES)
    with pytest.raises(AstraStreamError, match=r"batches.main\[0\]@\d+ must still be in the log"):
        make_trainer(log, store, tmp_path).run()


def test_batches_that_were_trimmed_below_what_is_needed_are_refused(stopped, tmp_path):
    log, store = stopped
    without_checkpoints(store)
    log.trim(Partition(BATCHES, 0), 2)
    with pytest.raises(AstraStreamError, match=r"batches.main\[0\]@0 must still be in the log"):
        make_trainer(log, store, tmp_path).run()


def test_announcements_that_are_gone_are_not_made_a_second_time(stopped, tmp_path):
    log, store = stopped
    remake(log, WEIGHTS)
    with pytest.raises(AstraStreamError, match="must hold what was announced of the batches below"):
        make_trainer(log, store, tmp_path).run()
    assert log.records(WEIGHTS) == []


def test_positions_that_the_broker_forgot_are_not_needed(stopped, tmp_path):
    log, store = stopped
    log.state.groups[TOPICS.group("trainer", POLICY)].committed.clear()
    goes_on(log, store, tmp_path)


@pytest.mark.parametrize("topic", [BATCHES, WEIGHTS])
def test_a_torn_record_that_is_owed_ends_the_trainer_by_its_place(stopped, tmp_path, topic):
    log, store = stopped
    without_checkpoints(store)
    held = log.state.partitions[Partition(topic, 0)].records
    place = next(i for i, message in enumerate(held) if message is not None)
    torn = held[place].value[:-5]
    held[place] = type(held[place])(topic, 0, place, b"k", torn, 0)
    with pytest.raises(SchemaError, match=rf"{topic}\[0\]@{place}: a record must follow"):
        make_trainer(log, store, tmp_path).run()
