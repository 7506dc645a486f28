from pathlib import Path

import numpy as np
import pytest

from astra_stream.errors import WeightsError
from astra_stream.records import PolicyVersion
from astra_stream.store.memory import MemoryStore
from astra_stream.weights.publisher import SnapshotPublisher

TENSORS = {"a": np.arange(6, dtype="<u2").reshape(2, 3)}
DTYPES = {"a": "BF16"}
VERSION = PolicyVersion(2, 118)


def _publisher(store: MemoryStore) -> SnapshotPublisher:
    return SnapshotPublisher(store, policy="main", files={"config.json": b"{}"})


def test_every_key_ends_in_its_contents_hash():
    store = MemoryStore()
    announced = _publisher(store).publish(TENSORS, DTYPES, version=VERSION)
    config, weights = announced.objects
    assert config.key == f"weights/main/files/config-{config.sha256[:16]}.json"
    assert weights.key == f"weights/main/2/00000118/model-{weights.sha256[:16]}.safetensors"
    found = {one.key: one.size_bytes for one in store.list("")}
    assert found == {entry.key: entry.size_bytes for entry in announced.objects}
    assert announced.num_bytes == config.size_bytes + weights.size_bytes


def test_publishing_again_is_harmless_and_equal():
    store = MemoryStore()
    first = _publisher(store).publish(TENSORS, DTYPES, version=VERSION)
    assert _publisher(store).publish(TENSORS, DTYPES, version=VERSION) == first


def test_two_trainers_of_one_version_do_not_overwrite_each_other():
    store = MemoryStore()
    announced = [
        _publisher(store).publish({"a": TENSORS["a"] + n}, DTYPES, version=VERSION) for n in (0, 1)
    ]
    assert len({a.objects[1].key for a in announced}) == 2
    assert len(list(store.list("weights/main/2/"))) == 2


def test_the_steps_facts_pass_through():
    announced = _publisher(MemoryStore()).publish(
        TENSORS,
        DTYPES,
        version=VERSION,
        train_metrics={"loss": 0.5},
        num_trained_samples=256,
        num_trained_tokens=4096,
        batch_id="main/117",
        checkpoint="checkpoints/118",
    )
    assert announced.kind == "snapshot"
    assert announced.train_metrics == {"loss": 0.5}
    assert (announced.num_trained_samples, announced.num_trained_tokens) == (256, 4096)
    assert (announced.batch_id, announced.checkpoint) == ("main/117", "checkpoints/118")


class DamagingStore(MemoryStore):
    """Changes the last byte of what it is given, as a bad disk may."""

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes()[:-1] + b"?")


def test_what_was_damaged_on_the_way_is_not_announced():
    with pytest.raises(WeightsError, match="must be stored as it was sent"):
        _publisher(DamagingStore()).publish(TENSORS, DTYPES, version=VERSION)


@pytest.mark.parametrize("name", ["../config.json", "modeling.py", ".json", "a/b.json", "x.bin"])
def test_a_file_that_could_run_or_lie_elsewhere_is_refused(name: str):
    with pytest.raises(ValueError, match="a model file must be a plain name"):
        SnapshotPublisher(MemoryStore(), policy="main", files={name: b""})
