"""Checkpoints in a store: whole, named by what they hold, and verified when they are read."""

import pytest

from astra_stream.errors import WeightsError
from astra_stream.store.memory import MemoryStore
from astra_stream.training.checkpoints import CheckpointStore

FACTS = {"standing": {"version": [0, 4]}, "next_offset": 12}


class Notes:
    """A backend whose state is two files."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def save(self, directory):
        (directory / "state.json").write_text(self.text)
        (directory / "tensors.safetensors").write_text(self.text[::-1])

    def restore(self, directory):
        self.text = (directory / "state.json").read_text()
        assert (directory / "tensors.safetensors").read_text() == self.text[::-1]


def uploaded(store, directory, text="weights"):
    checkpoints = CheckpointStore(store, policy="main", directory=directory)
    return checkpoints, checkpoints.upload(checkpoints.write(Notes(text), **FACTS))


def test_what_was_saved_is_restored_with_its_facts(tmp_path):
    checkpoints, key = uploaded(MemoryStore(), tmp_path)
    backend = Notes()
    facts = checkpoints.restore(key, backend)
    assert backend.text == "weights"
    assert (facts["standing"], facts["next_offset"]) == (FACTS["standing"], 12)
    assert list(tmp_path.iterdir()) == []


def test_training_may_go_on_between_writing_and_uploading(tmp_path):
    checkpoints = CheckpointStore(MemoryStore(), policy="main", directory=tmp_path)
    backend = Notes("before")
    written = checkpoints.write(backend, **FACTS)
    backend.text = "after"
    checkpoints.restore(checkpoints.upload(written), backend)
    assert backend.text == "before"


def test_equal_checkpoints_are_equal_objects(tmp_path):
    store = MemoryStore()
    keys = {uploaded(store, tmp_path)[1] for _ in range(2)}
    assert len(keys) == 1
    assert len(list(store.list("checkpoints/main/0/00000004/"))) == 3


def test_other_checkpoints_leave_earlier_ones_as_they_are(tmp_path):
    store = MemoryStore()
    checkpoints, first = uploaded(store, tmp_path)
    _, second = uploaded(store, tmp_path, "others")
    backend = Notes()
    for key, text in ((first, "weights"), (second, "others")):
        checkpoints.restore(key, backend)
        assert backend.text == text


def test_a_damaged_file_is_refused_by_its_key_and_nothing_is_restored(tmp_path):
    class Damaged(MemoryStore):
        def get(self, key, *, max_bytes):
            data = super().get(key, max_bytes=max_bytes)
            return data[::-1] if "tensors" in key else data

    checkpoints, key = uploaded(Damaged(), tmp_path)
    backend = Notes("kept")
    with pytest.raises(
        WeightsError, match=r"checkpoint file checkpoints/main/0/00000004/tensors-.* must have"
    ):
        checkpoints.restore(key, backend)
    assert backend.text == "kept"
