"""The broker's disk is full while a writer writes: nothing that was acknowledged is lost."""

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from astra_stream.cli.run import refuse_failure
from astra_stream.clock import SystemClock
from astra_stream.errors import TransientError
from astra_stream.local.broker import NAME, PORT_NAMES, kafka_server, prepare_broker
from astra_stream.local.jars import locked_jars, read_lock
from astra_stream.local.java import find_java
from astra_stream.local.ports import LOOPBACK, PortReservation
from astra_stream.local.supervisor import Supervisor
from astra_stream.log.interface import TopicSettings, Writer
from astra_stream.log.kafka import KafkaLog
from astra_stream.log.kafka_admin import KafkaAdmin
from astra_stream.log.reading import read_to_end

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(240)]

START_S = 90.0
DEADLINE_S = 8.0
SMALL_MIB = 48
RECORD_BYTES = 512 * 2**10
BATCH = 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "disk"
    directory.mkdir()
    if mount(directory, f"size={SMALL_MIB}m"):
        pytest.skip("mounting a small file system takes the right to mount")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def mount(directory: Path, options: str) -> int:
    """Exit code of mounting a file system in memory, or of changing the one that is mounted."""
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(directory)]
    return subprocess.run(command, check=False, capture_output=True).returncode


def write_batch(writer: Writer, first: int) -> set[int]:
    """One transaction with records that nothing can compress, under their numbers."""
    numbers = range(first, first + BATCH)
    with writer.transaction() as txn:
        for number in numbers:
            txn.write("t", str(number).encode(), random.Random(number).randbytes(RECORD_BYTES))
    return set(numbers)


def fill(log: KafkaLog) -> tuple[set[int], int]:
    """Write until the broker halts: what was acknowledged, and where the next batch began."""
    acknowledged: set[int] = set()
    with closing(log.writer("w")) as writer:
        for first in range(0, 2 * SMALL_MIB, BATCH):
            try:
                acknowledged |= write_batch(writer, first)
            except TransientError:
                return acknowledged, first
    pytest.fail(f"a disk of {SMALL_MIB} MiB must be full: got {len(acknowledged)} records on it")


def test_a_full_disk_halts_the_broker_and_room_brings_everything_back_once(small_disk: Path):
    (small_disk / "logs").mkdir()
    java, jars = find_java(None), locked_jars(read_lock())
    with (
        Supervisor(small_disk / "logs", grace_s=5.0) as supervisor,
        PortReservation(PORT_NAMES, remembered={}) as ports,
    ):
        server = kafka_server(small_disk, java=java, jars=jars, ports=ports)
        prepare_broker(small_disk, java=java, jars=jars, ports=ports, timeout_s=START_S)
        server.start(supervisor)
        server.wait_ready(supervisor, timeout_s=START_S)
        bootstrap = f"{LOOPBACK}:{ports['kafka']}"
        with closing(KafkaAdmin(bootstrap)) as admin:
            admin.create([TopicSettings(name="t", partitions=2, settings={})])
        with closing(KafkaLog(bootstrap, deadline_s=DEADLINE_S)) as log:
            acknowledged, unsure = fill(log)
        assert acknowledged

        assert supervisor.has_ended(NAME, within_s=60.0)
        (ended,) = supervisor.exits()
        assert not ended.restarted
        assert shutil.disk_usage(small_disk).free < RECORD_BYTES * BATCH
        with pytest.raises(TransientError, match=rf"the disk of {small_disk}/logs must have room"):
            refuse_failure(ended)

        assert mount(small_disk, f"remount,size={8 * SMALL_MIB}m") == 0
        server.start(supervisor)
        server.wait_ready(supervisor, timeout_s=START_S)
        with closing(KafkaLog(bootstrap, deadline_s=START_S)) as log:
            with closing(log.writer("w")) as writer:
                acknowledged |= write_batch(writer, 1000)
            found = [
                int((message.key or b"").decode())
                for message in read_to_end(log, "t", clock=SystemClock())
            ]
    assert len(found) == len(set(found))
    in_doubt = set(range(unsure, unsure + BATCH))
    assert set(found) in (acknowledged, acknowledged | in_doubt)
