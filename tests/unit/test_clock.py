import time

import pytest

from astra_stream.clock import SystemClock


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0], ids=["back a day", "forth a day"])
def test_a_clock_that_is_set_moves_nothing_that_was_started_before(monkeypatch, jump_s):
    wall, monotonic = time.time(), time.monotonic
    clock = SystemClock()
    assert clock.now_s() == pytest.approx(wall, abs=60)
    monkeypatch.setattr(time, "time", lambda: wall + jump_s)
    began = monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + 5.0)
    assert clock.now_s() == pytest.approx(wall + 5.0, abs=60)
    assert clock.monotonic_s() == began + 5.0
    monkeypatch.setattr(time, "monotonic", lambda: began + 7.0)
    assert clock.now_s() == pytest.approx(wall + 7.0, abs=60)
    assert SystemClock().now_s() == pytest.approx(wall + jump_s, abs=60)
