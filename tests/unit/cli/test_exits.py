"""What is said of a child that ended."""

from pathlib import Path

import pytest

from astra_stream.cli import exits
from astra_stream.cli.exits import last_words, refuse_full_disk, restarted_text
from astra_stream.errors import TransientError
from astra_stream.local.supervisor import ChildExited


def ended(directory: Path, *, code: int = 1, tail: str = "") -> ChildExited:
    return ChildExited(
        name="kafka",
        code=code,
        restarted=False,
        expected=False,
        log_path=directory / "kafka.log",
        log_tail=tail,
    )


def test_a_restart_says_why(tmp_path: Path) -> None:
    tail = "one\nastra: store s3://b must answer within 30 s\n"
    assert restarted_text(ended(tmp_path, code=75, tail=tail)) == (
        "kafka was started again after exit 75; last it said: store s3://b must answer within 30 s"
    )
    assert restarted_text(ended(tmp_path, code=-9)).startswith(
        "kafka was started again after signal 9; "
    )
    assert last_words(ended(tmp_path)) == "nothing"


def test_a_disk_without_room_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    refuse_full_disk(ended(logs))
    monkeypatch.setattr(exits, "LEAST_FREE_BYTES", 2**62)
    refuse_full_disk(ended(logs, code=0))
    rule = rf"the disk of {logs} must have room for kafka: .* astra run --resume {tmp_path};"
    with pytest.raises(TransientError, match=rule):
        refuse_full_disk(ended(logs))
