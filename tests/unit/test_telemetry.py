import io
import logging
import re
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from astra_stream import telemetry


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    telemetry.set_up_logging("trainer", stream=stream)
    yield stream
    telemetry.set_up_logging("none", stream=io.StringIO())


def test_a_line_has_time_level_service_message_and_facts(lines: io.StringIO) -> None:
    logger = logging.getLogger("astra_stream.training")
    logger.info("version changed", extra={"version": 12, "took_s": 0.25, "why": "a batch"})
    pattern = r"\d\d:\d\d:\d\d INFO  trainer  version changed version=12 took_s=0.25 why='a batch'"
    assert re.fullmatch(pattern, lines.getvalue().strip())


def test_a_stack_follows_its_line(lines: io.StringIO) -> None:
    try:
        int("no")
    except ValueError:
        logging.getLogger("astra_stream.x").exception("failed")
    first, *stack = lines.getvalue().splitlines()
    assert first.endswith("ERROR trainer  failed")
    assert stack[-1].startswith("ValueError: ")


def test_setting_up_twice_writes_once(lines: io.StringIO) -> None:
    telemetry.set_up_logging("other", stream=lines)
    logging.getLogger("astra_stream").warning("once")
    assert lines.getvalue().count("once") == 1


def test_a_counter_adds_up_by_label() -> None:
    telemetry.count("test_things_total", 2, kind="a")
    telemetry.count("test_things_total", kind="a")
    assert REGISTRY.get_sample_value("test_things_total", {"kind": "a"}) == 3


def test_a_gauge_is_what_was_said_last() -> None:
    telemetry.set_gauge("test_open_groups", 2)
    telemetry.set_gauge("test_open_groups", 1)
    assert REGISTRY.get_sample_value("test_open_groups") == 1


def test_a_histogram_counts_by_bucket() -> None:
    for value in (0, 1, 5):
        telemetry.observe("test_staleness_versions", value)
    assert REGISTRY.get_sample_value("test_staleness_versions_bucket", {"le": "1.0"}) == 2
    assert REGISTRY.get_sample_value("test_staleness_versions_sum") == 6


def test_names_without_their_unit_are_refused() -> None:
    with pytest.raises(ValueError, match="counter must end in _total: got 'things'"):
        telemetry.count("things")
    with pytest.raises(ValueError, match="histogram must end in one of"):
        telemetry.observe("things", 1)


def test_a_name_keeps_its_kind() -> None:
    telemetry.set_gauge("test_kind_total", 1)
    with pytest.raises(TypeError, match="must keep its kind"):
        telemetry.count("test_kind_total")
