import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.store.blobs import checked_key, file_sha256, whole_file


@given(st.text("a./\\ \n\0é", max_size=8))
def test_a_key_that_passes_stays_below_its_root(key: str):
    root = Path("/srv/root")
    try:
        path = root / checked_key(key)
    except ValueError:
        return
    assert path.resolve().is_relative_to(root)
    assert path.relative_to(root).as_posix() == key


def test_ordinary_keys_pass_unchanged():
    for key in ("a", "weights/main/0/00000001/model-0123.safetensors", "..a/b..", "é/ü x"):
        assert checked_key(key) == key


def test_a_file_that_is_not_finished_never_appears(tmp_path: Path):
    with pytest.raises(TypeError), whole_file(tmp_path / "d" / "x") as file:
        file.writelines([b"half", None])
    assert list((tmp_path / "d").iterdir()) == []
    (tmp_path / "x").write_bytes(b"old")
    with whole_file(tmp_path / "x") as file:
        file.write(b"new")
        assert (tmp_path / "x").read_bytes() == b"old"
    assert (tmp_path / "x").read_bytes() == b"new"


def test_a_files_hash_is_that_of_its_bytes(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"abc")
    assert file_sha256(tmp_path / "x") == hashlib.sha256(b"abc").hexdigest()
