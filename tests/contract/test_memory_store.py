import pytest

from astra_stream.store.blobs import Store
from astra_stream.store.memory import MemoryStore
from astra_stream.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()
