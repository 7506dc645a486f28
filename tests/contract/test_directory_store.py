from pathlib import Path

import pytest

from astra_stream.errors import TransientError
from astra_stream.store.blobs import DirectoryStore, Store
from astra_stream.testing.store_contract import StoreContract


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path_factory: pytest.TempPathFactory) -> Store:
        return DirectoryStore(tmp_path_factory.mktemp("store") / "objects")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    store = DirectoryStore(tmp_path / "file" / "store")
    with pytest.raises(TransientError, match=r"file/store must take 'a': got Not a directory"):
        store.put("a", b"")


def test_a_failed_write_leaves_nothing(tmp_path: Path):
    store = DirectoryStore(tmp_path)
    store.put("a", b"1")
    with pytest.raises(FileNotFoundError):
        store.put_file("b", tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
