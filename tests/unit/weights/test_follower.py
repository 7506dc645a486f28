from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astra_stream.errors import WeightsError
from astra_stream.records import ObjectEntry, PolicyVersion, WeightAnnouncement
from astra_stream.store.blobs import DirectoryStore
from astra_stream.store.memory import MemoryStore
from astra_stream.weights.follower import SnapshotFollower
from astra_stream.weights.hashing import root_hash
from astra_stream.weights.publisher import SnapshotPublisher

FILES = {"config.json": b"{}", "tokenizer.json": b"[]"}
DTYPES = {"a": "BF16", "b": "F32"}


def _tensors(fill: int = 0) -> dict[str, np.ndarray]:
    return {"a": np.full((2, 2), fill, "<u2"), "b": np.full(2, fill + 1, "<f4")}


def _publish(
    store: MemoryStore | DirectoryStore, number: int = 118, fill: int | None = None
) -> WeightAnnouncement:
    publisher = SnapshotPublisher(store, policy="main", files=FILES)
    tensors = _tensors(number if fill is None else fill)
    return publisher.publish(tensors, DTYPES, version=PolicyVersion(0, number))


def _follower(store: MemoryStore | DirectoryStore, path: Path) -> SnapshotFollower:
    return SnapshotFollower(store, path / "followed", "main")


def _with_object(announced: WeightAnnouncement, index: int, **changes: object):
    objects = list(announced.objects)
    objects[index] = replace(objects[index], **changes)
    return replace(announced, objects=tuple(objects))


def test_what_is_published_is_followed(tmp_path: Path):
    store = MemoryStore()
    announced = _publish(store)
    follower = _follower(store, tmp_path)
    assert follower.version is None
    update = follower.fetch(announced)
    assert follower.version == update.version == PolicyVersion(0, 118)
    assert dict(update.dtypes) == DTYPES
    for name, array in _tensors(118).items():
        np.testing.assert_array_equal(update.tensors[name], array)


def test_the_directory_holds_the_model_and_nothing_else(tmp_path: Path):
    store = MemoryStore()
    directory = _follower(store, tmp_path).model_directory(_publish(store))
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (directory / "config.json").read_bytes() == b"{}"


def test_versions_in_between_may_be_left_out_and_two_stay_on_disk(tmp_path: Path):
    store = MemoryStore()
    follower = _follower(store, tmp_path)
    for number in (1, 5, 6):
        follower.fetch(_publish(store, number))
    kept = sorted(path.name[:13] for path in (tmp_path / "followed").iterdir())
    assert kept == ["0000-00000005", "0000-00000006"]


def test_arrays_outlive_their_files(tmp_path: Path):
    store = MemoryStore()
    follower = _follower(store, tmp_path)
    first = follower.fetch(_publish(store, 1))
    for number in (2, 3, 4):
        follower.fetch(_publish(store, number))
    np.testing.assert_array_equal(first.tensors["a"], _tensors(1)["a"])


def test_a_follower_does_not_go_back(tmp_path: Path):
    store = MemoryStore()
    follower = _follower(store, tmp_path)
    newer, older = _publish(store, 118), _publish(store, 117)
    follower.fetch(newer)
    with pytest.raises(
        WeightsError,
        match=r"^weights v117: version must be newer than v118: .*\. Keeping v118\.$",
    ):
        follower.fetch(older)
    with pytest.raises(WeightsError, match="version must be newer than v118: got v118"):
        follower.fetch(_publish(store, 118, fill=3))
    assert follower.fetch(replace(newer)).version == newer.version


def test_a_new_lineage_goes_on_from_the_same_number(tmp_path: Path):
    store = MemoryStore()
    follower = _follower(store, tmp_path)
    follower.fetch(_publish(store, 118))
    publisher = SnapshotPublisher(store, policy="main", files=FILES)
    opened = publisher.publish(_tensors(7), DTYPES, version=PolicyVersion(1, 110))
    assert follower.fetch(opened).version == PolicyVersion(1, 110)


def test_a_restarted_follower_uses_what_is_on_disk(tmp_path: Path):
    store = MemoryStore()
    announced = _publish(store)
    _follower(store, tmp_path).fetch(announced)
    for entry in announced.objects:
        store.delete(entry.key)
    assert _follower(store, tmp_path).fetch(announced).version == announced.version


def test_a_damaged_file_on_disk_is_fetched_again(tmp_path: Path):
    store = MemoryStore()
    announced = _publish(store)
    path = _follower(store, tmp_path).model_directory(announced) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    update = _follower(store, tmp_path).fetch(announced)
    np.testing.assert_array_equal(update.tensors["b"], _tensors(118)["b"])


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes([data[0] ^ 128]) + data[1:],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda _: b"",
    ],
    ids=["last byte", "first byte", "truncated", "longer", "empty"],
)
def test_a_damaged_object_is_refused(tmp_path: Path, damage, index: int):
    store = DirectoryStore(tmp_path / "store")
    held, announced = _publish(store, 117), _publish(store, 118)
    follower = _follower(store, tmp_path)
    follower.fetch(held)
    path = tmp_path / "store" / announced.objects[index].key
    path.write_bytes(damage(path.read_bytes()))
    if "files" in path.parts:
        (follower.model_directory(held) / announced.objects[index].key).unlink(missing_ok=True)
    with pytest.raises(WeightsError, match=r"^weights v118: .*must.*\. Keeping v117\.$"):
        follower.fetch(announced)
    assert follower.version == held.version
    assert follower.fetch(held).version == held.version


def test_a_missing_object_is_refused(tmp_path: Path):
    store = MemoryStore()
    announced = _publish(store)
    store.delete(announced.objects[-1].key)
    with pytest.raises(
        WeightsError, match=r"weights v118: object 'weights/main/0/00000118/model-.* Keeping none"
    ):
        _follower(store, tmp_path).fetch(announced)


def test_swapped_tensors_are_refused(tmp_path: Path):
    store = MemoryStore()
    a = np.full(2, 1, "<f4")
    publisher = SnapshotPublisher(store, policy="main", files=FILES)
    dtypes = {"a": "F32", "b": "F32"}
    good = publisher.publish({"a": a, "b": a + 1}, dtypes, version=PolicyVersion(0, 1))
    swapped = publisher.publish({"a": a + 1, "b": a}, dtypes, version=PolicyVersion(0, 1))
    with pytest.raises(WeightsError, match=r"tensor 'a' must hash to .*\. Keeping none\."):
        _follower(store, tmp_path).fetch(replace(good, objects=swapped.objects))


def _retabled(announced: WeightAnnouncement, **changes: object) -> WeightAnnouncement:
    table = (replace(announced.tensors[0], **changes), *announced.tensors[1:])
    return replace(announced, tensors=table, root_hash=root_hash(table))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: _retabled(a, dtype="F16"), "tensor 'a' must have dtype F16"),
        (lambda a: _retabled(a, shape=(4,)), r"tensor 'a' must have shape \[4\]"),
        (lambda a: _retabled(a, name="c"), "tensor names must be those announced"),
        (lambda a: _retabled(a, xxh3="0" * 32), "tensor 'a' must hash to 000000000000"),
        (lambda a: replace(a, tensors=a.tensors[:1]), "root hash of the tensor table must be"),
        (lambda a: replace(a, root_hash="0" * 64), "table must be 000000000000"),
        (lambda a: replace(a, policy="other"), "policy must be 'main': got 'other'"),
        (lambda a: replace(a, kind="delta"), "kind must be snapshot: got 'delta'"),
        (lambda a: replace(a, objects=a.objects[:-1]), "must be one model.safetensors"),
        (lambda a: replace(a, objects=a.objects * 2), "objects must be one model"),
    ],
)
def test_an_announcement_that_differs_from_its_bytes_is_refused(
    tmp_path: Path, change, message: str
):
    store = MemoryStore()
    announced = change(_publish(store))
    with pytest.raises(WeightsError, match=rf"^weights v118: .*{message}.*Keeping none\.$"):
        _follower(store, tmp_path).fetch(announced)


@pytest.mark.parametrize(
    "key",
    [
        "../../../etc/passwd-{}.json",
        "/etc/cron.d/x-{}.json",
        "weights/..-{}",
        "weights/.bashrc-{}.txt",
        "weights/modeling-{}.py",
        "weights/pytorch_model-{}.bin",
        "weights\\x-{}.json",
        "weights/config.json",
        "weights/config-0123456789abcdef.json",
    ],
)
def test_a_key_cannot_leave_the_directory_or_bring_code(tmp_path: Path, key: str):
    store = MemoryStore()
    announced = _publish(store)
    entry: ObjectEntry = announced.objects[0]
    bad = _with_object(announced, 0, key=key.format(entry.sha256[:16]))
    with pytest.raises(WeightsError, match=r"^weights v118: .* must .*\. Keeping none\.$"):
        _follower(store, tmp_path).fetch(bad)
    assert not (tmp_path / "followed").exists()


def test_a_failed_version_leaves_nothing_that_looks_whole(tmp_path: Path):
    store = MemoryStore()
    announced = _publish(store)
    with pytest.raises(WeightsError):
        _follower(store, tmp_path).fetch(_with_object(announced, 2, sha256=_other(announced)))
    assert all(p.name.endswith(".unfinished") for p in (tmp_path / "followed").glob("*"))


def _other(announced: WeightAnnouncement) -> str:
    sha256 = announced.objects[2].sha256
    return sha256[:16] + "0" * 48
