"""Log lines and metrics; the only module that knows which library carries them.

A line is a constant message with facts beside it:
``logger.info("version changed", extra={"version": 12})``.
"""

import logging
import sys
import threading
import time
from collections.abc import Sequence
from typing import TextIO, TypeVar

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, start_http_server

ROOT = "astra_stream"
PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every log record has; all others are facts."""

BUCKETS: dict[str, tuple[float, ...]] = {
    "seconds": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800),
    "bytes": (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10),
    "tokens": (1, 8, 32, 128, 512, 2048, 8192, 32768, 131072),
    "versions": (0, 1, 2, 3, 4, 6, 8, 12, 16),
}
"""Unit, which a histogram's name ends in, to upper bounds."""

Metric = TypeVar("Metric", Counter, Gauge, Histogram)
_metrics: dict[str, Counter | Gauge | Histogram] = {}
_lock = threading.Lock()


class LineFormatter(logging.Formatter):
    """One line per event: time, level, service, message, ``key=value``; a stack below it."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    # pyrefly: ignore[missing-override-decorator]  # typing has it from Python 3.12 on
    def format(self, record: logging.LogRecord) -> str:
        """Write a record as text."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        facts = [f"{k}={_value(v)}" for k, v in vars(record).items() if k not in PLAIN]
        head = f"{clock} {record.levelname:<5} {self._service}  {record.getMessage()}"
        line = " ".join([head, *facts])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logging(
    service: str, *, level: int = logging.INFO, stream: TextIO | None = None
) -> None:
    """Send the package's log lines to one place; calling it again replaces that place.

    Args:
        service: Who writes, such as ``trainer``.
        level: Least level shown.
        stream: Where to; None is stderr.
    """
    logger = logging.getLogger(ROOT)
    for existing in list(logger.handlers):
        logger.removeHandler(existing)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(service))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def count(name: str, amount: float = 1.0, **labels: str) -> None:
    """Add to a counter.

    Args:
        name: ``<thing>_total``, such as ``tokens_total``.
        amount: At least 0.
        **labels: Values from closed sets.
    """
    if not name.endswith("_total"):
        raise ValueError(f"counter must end in _total: got {name!r}. Rename it.")
    counter = _metric(Counter, name, sorted(labels))
    (counter.labels(**labels) if labels else counter).inc(amount)


def set_gauge(name: str, value: float, **labels: str) -> None:
    """Say what a quantity is now.

    Args:
        name: ``<thing>_<unit>``, such as ``open_slots_groups``.
        value: What it is.
        **labels: Values from closed sets.
    """
    gauge = _metric(Gauge, name, sorted(labels))
    (gauge.labels(**labels) if labels else gauge).set(value)


def observe(name: str, value: float, **labels: str) -> None:
    """Add a value to a histogram.

    Args:
        name: ``<thing>_<unit>`` with a unit of ``BUCKETS``, such as ``episode_seconds``.
        value: In that unit.
        **labels: Values from closed sets.
    """
    if name.rpartition("_")[2] not in BUCKETS:
        raise ValueError(
            f"histogram must end in one of {sorted(BUCKETS)}: got {name!r}. Rename it."
        )
    histogram = _metric(Histogram, name, sorted(labels))
    (histogram.labels(**labels) if labels else histogram).observe(value)


def serve_metrics(port: int, *, address: str = "127.0.0.1") -> None:
    """Answer Prometheus on a port, in a thread that ends with the process."""
    start_http_server(port, addr=address)


def _metric(kind: type[Metric], name: str, labels: Sequence[str]) -> Metric:
    with _lock:
        found = _metrics.get(name)
        if found is None:
            options = {"buckets": BUCKETS[name.rpartition("_")[2]]} if kind is Histogram else {}
            found = kind(name, name.replace("_", " "), labels, registry=REGISTRY, **options)
            _metrics[name] = found
    if not isinstance(found, kind):
        raise TypeError(f"metric {name!r} must keep its kind: got {kind.__name__}. Rename one.")
    return found


def _value(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text else text
