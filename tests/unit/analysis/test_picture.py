import math
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from astra_stream.analysis import RunState, draw
from astra_stream.analysis.picture import subtitle
from astra_stream.errors import ConfigError


def size_of(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", data[16:24])


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_steps", [0, 60])
def test_a_run_is_drawn(num_steps: int, records: SimpleNamespace, tmp_path: Path) -> None:
    state = records.trained_state(num_steps) if num_steps else RunState()
    if num_steps:
        state.fold(records.evaluate(0, 0.5), at_s=1000.0)
        state.fold(records.evaluate(num_steps, math.nan, final=True), at_s=1130.0)
    path = tmp_path / "run.png"
    draw(state, path, title="sums", max_staleness=2)
    assert size_of(path) == (1950, 1350)


def test_without_matplotlib_the_install_line_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r'pip install "astra-stream\[train\]"'):
        draw(RunState(), tmp_path / "run.png", title="sums")


def test_the_subtitle_says_what_the_run_came_to(records: SimpleNamespace) -> None:
    state = records.trained_state(10, step_s=2.0)
    state.fold(records.evaluate(0, 0.5), at_s=1000.0)
    state.fold(records.evaluate(10, 0.75), at_s=1020.0)
    line = subtitle(state)
    assert "10 steps and 80 samples in 20.0 s" in line
    assert "accuracy 0.500 to 0.750" in line
    assert subtitle(RunState()) == "no step yet"
