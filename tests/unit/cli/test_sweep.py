"""What ``astra sweep`` prints and takes."""

import pytest

from astra_stream.analysis.orphans import PENDING, Orphan
from astra_stream.cli.sweep import as_object, as_seconds, show
from astra_stream.errors import ConfigError

PAST = Orphan(key="weights/main/0/00000001/a", size_bytes=1000, age_s=7200.0, kept="")
AHEAD = Orphan(key="weights/main/0/00000009/b", size_bytes=500, age_s=7200.0, kept=PENDING)


@pytest.mark.parametrize("said", ["may be deleted: --delete does it", "deleted"])
def test_objects_are_counted_by_what_becomes_of_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    show([PAST, PAST, AHEAD], title="sums", delete=said == "deleted")
    out = capsys.readouterr().out
    assert "sums: 3 objects that nothing names" in out
    counted = [" ".join(line.split("│")).split() for line in out.splitlines() if "│" in line]
    assert ["2", "2,000", *said.split()] in counted
    assert ["1", "500", *PENDING.split()] in counted
    assert [PAST.key, "7,200", "s", *said.split()] in counted


def test_no_orphans_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show([], title="sums", delete=False)
    assert capsys.readouterr().out == "sums: 0 objects that nothing names\n"


def test_only_what_may_go_is_said_to_be_deleted() -> None:
    assert as_object(PAST, delete=True) == {
        "key": PAST.key,
        "size_bytes": 1000,
        "age_s": 7200.0,
        "kept": "",
        "deleted": True,
    }
    assert not as_object(PAST, delete=False)["deleted"]
    assert not as_object(AHEAD, delete=True)["deleted"]


def test_the_grace_period_is_a_duration() -> None:
    assert as_seconds("90m") == 5400.0
    with pytest.raises(ConfigError, match=r"--grace must be a duration such as '90s': got '1 day'"):
        as_seconds("1 day")
