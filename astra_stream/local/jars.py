"""The broker's jars: fetched once, checked against the committed lock at every start.

The lock names every jar with its version, so nothing is resolved: a resolver may pick other
versions on another day, and with other roots beside Kafka it does.
"""

import hashlib
import logging
import os
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from astra_stream.errors import ConfigError, TransientError
from astra_stream.local.java import INSTALL_LINE

LOCK_PATH = Path(__file__).with_name("kafka.lock.toml")
_NUM_DOWNLOADS = 8
_NUM_TRIES = 3
_TIMEOUT_S = 30

Progress = Callable[[int, int], None]
"""Told the number of jars that are here and the number there must be."""


def read_lock(path: Path = LOCK_PATH) -> dict[str, str]:
    """The SHA-256 of every jar, by ``group:artifact:version``."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["jars"]


def jar_cache() -> Path:
    """Where jars are kept between runs, for all runs of this user."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "astra-stream" / "jars"


def locked_jars(
    lock: Mapping[str, str],
    *,
    cache: Path | None = None,
    on_progress: Progress | None = None,
) -> list[Path]:
    """Every jar of the lock, with exactly the bytes that the lock names.

    Jars are kept under their hash, so a jar that is in the cache needs no network.

    Args:
        lock: SHA-256 by ``group:artifact:version``.
        cache: Directory to keep jars in; None is the user's cache.
        on_progress: Called after each jar that had to be fetched.

    Raises:
        ConfigError: A jar has other bytes, or the package that fetches is not installed.
        TransientError: A jar cannot be fetched.
    """
    cache = cache or jar_cache()
    if ":" in str(cache):
        raise ConfigError(
            f"the jar cache must have no ':' in its path, which separates jars for Java: got "
            f"{str(cache)!r}. Point XDG_CACHE_HOME elsewhere."
        )
    paths = {
        coordinate: cache / sha256 / _file_name(coordinate) for coordinate, sha256 in lock.items()
    }
    missing = [coordinate for coordinate, path in paths.items() if not path.exists()]
    if missing:
        _fetch_all(missing, lock, cache, on_progress)
    for coordinate, path in paths.items():
        verify_jar(path, lock[coordinate])
    return list(paths.values())


def verify_jar(path: Path, sha256: str) -> None:
    """Refuse a jar whose bytes are not the locked ones.

    Raises:
        ConfigError: The hashes differ.
    """
    with path.open("rb") as jar:
        found = hashlib.file_digest(jar, "sha256").hexdigest()
    if found != sha256:
        raise ConfigError(
            f"jar {path.name} must have SHA-256 {sha256}: got {found}. "
            f"Delete {path} and start again; if it comes back the same, do not trust its source."
        )


def _file_name(coordinate: str) -> str:
    _, artifact, version = coordinate.split(":")
    return f"{artifact}-{version}.jar"


def _fetch_all(
    missing: list[str], lock: Mapping[str, str], cache: Path, on_progress: Progress | None
) -> None:
    try:
        import jgo.maven  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the embedded broker's jars must be fetched once: got no package 'jgo'. "
            f"Run {INSTALL_LINE}."
        ) from error
    logger = logging.getLogger("jgo")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    cache.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(_NUM_DOWNLOADS) as pool:
        fetched = pool.map(partial(_fetch, lock=lock, cache=cache), missing)
        for num_fetched, _ in enumerate(fetched, start=1):
            if on_progress is not None:
                on_progress(len(lock) - len(missing) + num_fetched, len(lock))


def _fetch(coordinate: str, *, lock: Mapping[str, str], cache: Path) -> None:
    """Download beside the cache, verify, and only then move into place."""
    for attempt in range(1, _NUM_TRIES + 1):
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as scratch:
            try:
                fetched = _download(coordinate, Path(scratch))
            except (OSError, RuntimeError) as error:
                if attempt < _NUM_TRIES:
                    continue
                raise TransientError(
                    f"jar {coordinate} must be fetched once, in {_NUM_TRIES} tries: got "
                    f"{type(error).__name__}. Check the network and start again; the jars that "
                    f"arrived are kept in {cache}."
                ) from error
            verify_jar(fetched, lock[coordinate])
            place = cache / lock[coordinate] / fetched.name
            place.parent.mkdir(exist_ok=True)
            fetched.replace(place)
            return


def _download(coordinate: str, scratch: Path) -> Path:
    from jgo.config import GlobalSettings
    from jgo.maven import MavenContext, PythonResolver

    context = MavenContext(resolver=PythonResolver(), repo_cache=scratch, timeout=_TIMEOUT_S)
    context.remote_repos.update(GlobalSettings.load().repositories)
    return context.create_dependency(coordinate).artifact.resolve()
