import hashlib
import sys

import pytest

from astra_stream.errors import ConfigError, TransientError
from astra_stream.local import jars
from astra_stream.local.jars import jar_cache, locked_jars, read_lock

JAR = b"PK some classes"
COORDINATE = "org.example:thing:1.0"
SHA256 = hashlib.sha256(JAR).hexdigest()


def put_in_cache(cache, content):
    path = cache / SHA256 / "thing-1.0.jar"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_the_lock_names_every_jar_once_with_its_hash():
    lock = read_lock()
    assert len(lock) == 45
    assert all(len(sha256) == 64 and int(sha256, 16) for sha256 in lock.values())
    assert len({coordinate.rpartition(":")[0] for coordinate in lock}) == 45


def test_every_kafka_jar_of_the_lock_is_of_one_version():
    versions = {c.split(":")[2] for c in read_lock() if c.startswith("org.apache.kafka:")}
    assert versions == {"4.4.0"}


def test_a_cached_jar_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jgo", None)
    path = put_in_cache(tmp_path, JAR)
    assert locked_jars({COORDINATE: SHA256}, cache=tmp_path) == [path]


def test_a_jar_with_other_bytes_is_refused_with_both_hashes(tmp_path):
    path = put_in_cache(tmp_path, b"PK other classes")
    found = hashlib.sha256(b"PK other classes").hexdigest()
    with pytest.raises(ConfigError) as refusal:
        locked_jars({COORDINATE: SHA256}, cache=tmp_path)
    assert f"jar thing-1.0.jar must have SHA-256 {SHA256}: got {found}. " in str(refusal.value)
    assert f"Delete {path} and start again" in str(refusal.value)


def test_a_missing_jar_without_the_package_that_fetches_names_the_install_line(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "jgo", None)
    with pytest.raises(ConfigError, match=r'pip install "astra-stream\[local\]"'):
        locked_jars({COORDINATE: SHA256}, cache=tmp_path)


def test_a_cache_path_that_java_would_split_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must have no ':'"):
        locked_jars({COORDINATE: SHA256}, cache=tmp_path / "a:b")


def test_the_cache_follows_the_desktop_convention(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jar_cache() == tmp_path / "astra-stream" / "jars"


def serve(monkeypatch, content):
    """Stand in for the network: whatever is asked for has this content."""
    asked = []

    def download(coordinate, scratch):
        asked.append(coordinate)
        if content is None:
            raise ConnectionError("no route")
        path = scratch / "thing-1.0.jar"
        path.write_bytes(content)
        return path

    monkeypatch.setattr(jars, "_download", download)
    return asked


def test_a_fetched_jar_is_kept_under_its_hash_and_fetched_once(tmp_path, monkeypatch):
    asked = serve(monkeypatch, JAR)
    progress = []
    for _ in range(2):
        [path] = locked_jars(
            {COORDINATE: SHA256}, cache=tmp_path, on_progress=lambda *seen: progress.append(seen)
        )
    assert path.read_bytes() == JAR
    assert asked == [COORDINATE]
    assert progress == [(1, 1)]
    assert list(tmp_path.iterdir()) == [tmp_path / SHA256]


def test_a_fetched_jar_with_other_bytes_is_not_kept(tmp_path, monkeypatch):
    serve(monkeypatch, b"PK other classes")
    with pytest.raises(ConfigError, match="must have SHA-256"):
        locked_jars({COORDINATE: SHA256}, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_jar_that_cannot_be_fetched_is_tried_again_and_then_named(tmp_path, monkeypatch):
    asked = serve(monkeypatch, None)
    with pytest.raises(TransientError, match=f"jar {COORDINATE} must be fetched once, in 3 tries"):
        locked_jars({COORDINATE: SHA256}, cache=tmp_path)
    assert len(asked) == 3
