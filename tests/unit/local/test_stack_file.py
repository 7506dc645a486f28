import dataclasses
import os
import stat
import subprocess

import pytest

from astra_stream.errors import ConfigError
from astra_stream.local.object_store import PORT_NAMES
from astra_stream.local.private_file import write_private
from astra_stream.local.spawn import ProcessIdentity
from astra_stream.local.stack import StackInfo, _write, read_stack, start_stack, stop_stack

INFO = StackInfo(
    bootstrap="127.0.0.1:20001",
    store_url="s3://astra/runs",
    s3_endpoint="http://127.0.0.1:20002",
    s3_access_key="an-access-key",
    s3_secret_key="a-secret-key",
    ports={"kafka": 20001},
    owner=None,
    servers={},
)


def running(info):
    return dataclasses.replace(info, servers={"kafka": ProcessIdentity.of(os.getpid())})


def test_what_is_written_is_read_back(tmp_path):
    _write(tmp_path, running(INFO))
    assert read_stack(tmp_path) == running(INFO)


def test_a_directory_without_a_stack_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold a stack: got .* Start one there"):
        read_stack(tmp_path)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "stack.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"stack\.json must describe a stack: got 'owner'"):
        read_stack(tmp_path)


def test_a_second_stack_in_the_same_directory_is_refused(tmp_path):
    _write(tmp_path, running(INFO))
    with pytest.raises(ConfigError, match=rf"must have no running stack: got .* {os.getpid()}"):
        start_stack(tmp_path)


def test_stopping_what_does_not_run_says_so(tmp_path):
    _write(tmp_path, INFO)
    assert stop_stack(tmp_path) is False


def test_a_reused_pid_is_not_the_same_process():
    me = ProcessIdentity.of(os.getpid())
    assert me.is_alive()
    assert not ProcessIdentity(me.pid, me.start_ticks - 1).is_alive()


def test_the_secret_is_not_shown():
    assert "a-secret-key" not in repr(INFO)


def test_a_private_file_is_private_from_the_start(tmp_path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_stopping_from_another_process_ends_the_owner_and_the_servers(tmp_path):
    children = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(3)]
    owner, kafka, store = (ProcessIdentity.of(child.pid) for child in children)
    info = dataclasses.replace(
        INFO,
        owner=owner,
        servers={"kafka": kafka, "store": store},
        ports={name: 20_000 + number for number, name in enumerate(PORT_NAMES)},
    )
    _write(tmp_path, info)
    assert stop_stack(tmp_path, timeout_s=5.0) is True
    assert [child.wait() for child in children] == [-15, -15, -9]
    assert not read_stack(tmp_path).is_running()
