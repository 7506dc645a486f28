"""What benchmarks of the log stand on: a real broker on few cores, with the topics of a run."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from astra_stream.declarations import declared
from astra_stream.local.stack import start_stack
from astra_stream.log.codec import Codec
from astra_stream.log.kafka_admin import KafkaAdmin
from astra_stream.log.names import TopicNames
from astra_stream.log.topics import declared_topics

NAMES = TopicNames("bench")
CORES = 2


def open_codec() -> Codec:
    return Codec(declared("schemas"))


@contextmanager
def embedded_broker(
    policies: Sequence[str] = ("main",), *, pools: Sequence[str] = ("main",), cores: int = CORES
) -> Iterator[str]:
    """A new broker and its address; it and all that this process starts share ``cores`` cores."""
    pin(cores)
    with (
        tempfile.TemporaryDirectory(prefix="astra-bench-", ignore_cleanup_errors=True) as directory,
        start_stack(Path(directory)) as stack,
    ):
        topics = declared_topics(NAMES.run, policies, pools, {}, directory=declared("topics"))
        KafkaAdmin(stack.bootstrap).create(topics)
        yield stack.bootstrap


def pin(cores: int) -> None:
    """Keep this process and its children to the first ``cores`` of those that it may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))
