"""What every store must do; a test file per implementation inherits it and gives the store."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from astra_stream.errors import WeightsError
from astra_stream.store.blobs import Store

CLOCK_S = 2.0
"""What the store's clock may differ from this one, its rounding to seconds included."""
BAD_KEYS = ("", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", "a\\b", "a\nb", "a\0b")


def sizes(store: Store, prefix: str) -> list[tuple[str, int]]:
    """What is listed below a prefix, without its times."""
    return [(found.key, found.size_bytes) for found in store.list(prefix)]


class StoreContract:
    """Inherit it and define the fixture ``store``, empty at the start of each test."""

    def test_what_is_put_is_got(self, store: Store) -> None:
        store.put("a/b.bin", b"bytes")
        store.put("a/empty", memoryview(b""))
        assert store.get("a/b.bin", max_bytes=5) == b"bytes"
        assert store.get("a/empty", max_bytes=0) == b""

    def test_equal_bytes_may_be_put_again(self, store: Store) -> None:
        store.put("key", b"same")
        store.put("key", b"same")
        assert store.get("key", max_bytes=100) == b"same"

    @pytest.mark.parametrize("other", [b"diff", b"longer bytes", b""])
    def test_other_bytes_under_a_key_are_refused(self, store: Store, other: bytes) -> None:
        store.put("key", b"same")
        with pytest.raises(WeightsError, match=r"'key' .* must keep its bytes"):
            store.put("key", other)
        assert store.get("key", max_bytes=100) == b"same"

    def test_one_of_many_writers_wins(self, store: Store) -> None:
        def put(number: int) -> bool:
            try:
                store.put("race", bytes([number]) * 1000)
            except WeightsError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(put, range(8)))
        assert won.count(True) == 1
        assert store.get("race", max_bytes=1000) == bytes([won.index(True)]) * 1000

    def test_a_missing_object_is_a_key_error(self, store: Store, tmp_path: Path) -> None:
        with pytest.raises(KeyError, match="none"):
            store.get("none", max_bytes=10)
        with pytest.raises(KeyError, match="none"):
            store.get_file("none", tmp_path / "x", max_bytes=10)
        assert list(tmp_path.iterdir()) == []

    def test_a_larger_object_than_expected_is_refused(self, store: Store, tmp_path: Path) -> None:
        store.put("big", b"12345")
        with pytest.raises(WeightsError, match="'big' must have at most 4 bytes: got 5"):
            store.get("big", max_bytes=4)
        with pytest.raises(WeightsError, match="at most 4 bytes"):
            store.get_file("big", tmp_path / "x", max_bytes=4)
        assert list(tmp_path.iterdir()) == []

    def test_files_go_in_and_come_out_whole(self, store: Store, tmp_path: Path) -> None:
        data = bytes(range(256)) * 12_000
        (tmp_path / "in").write_bytes(data)
        store.put_file("deep/er/file", tmp_path / "in")
        store.put_file("deep/er/file", tmp_path / "in")
        store.get_file("deep/er/file", tmp_path / "new" / "out", max_bytes=len(data))
        assert (tmp_path / "new" / "out").read_bytes() == data
        assert [p.name for p in (tmp_path / "new").iterdir()] == ["out"]

    def test_a_file_with_other_bytes_is_refused(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "in").write_bytes(b"other")
        store.put("key", b"first")
        with pytest.raises(WeightsError, match="must keep its bytes"):
            store.put_file("key", tmp_path / "in")

    def test_keys_are_listed_in_order_with_their_sizes(self, store: Store) -> None:
        for key, size_bytes in [("w/b", 2), ("w/a/x", 1), ("v/c", 3), ("w2", 4)]:
            store.put(key, b"x" * size_bytes)
        assert sizes(store, "w/") == [("w/a/x", 1), ("w/b", 2)]
        assert sizes(store, "w") == [("w/a/x", 1), ("w/b", 2), ("w2", 4)]
        assert sizes(store, "none") == []

    def test_an_object_is_listed_with_the_time_of_its_first_write(self, store: Store) -> None:
        before_s = time.time()
        store.put("key", b"x")
        (written,) = store.list("")
        assert before_s - CLOCK_S < written.modified_s < time.time() + CLOCK_S
        store.put("key", b"x")
        assert list(store.list("")) == [written]

    def test_deleting_twice_is_harmless(self, store: Store) -> None:
        store.put("key", b"x")
        store.delete("key")
        store.delete("key")
        assert list(store.list("")) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_stays_below_the_prefix(self, store: Store, key: str, tmp_path: Path) -> None:
        for call in (
            lambda: store.put(key, b""),
            lambda: store.get(key, max_bytes=1),
            lambda: store.get_file(key, tmp_path / "x", max_bytes=1),
            lambda: store.delete(key),
        ):
            with pytest.raises(ValueError, match="an object key must be relative"):
                call()
