"""A real Apache Kafka broker on this machine: KRaft, one node, loopback only.

Everything the broker is told is relative to the stack's directory, in which it runs: Java's lists
and property files would read commas, backslashes and accents in a path as something else.
"""

import base64
import logging
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from astra_stream.errors import ConfigError
from astra_stream.local.ports import LOOPBACK
from astra_stream.local.servers import ServerProcess, failure
from astra_stream.local.spawn import log_tail, spawn, wait_exit
from astra_stream.local.supervisor import Service

NAME = "kafka"
PORT_NAMES = ("kafka", "kafka_controller")
SERVER_STAGE = 100
"""Servers stop after everything that uses them."""
_SETTINGS_NAME = "kafka.properties"
_SCRATCH_NAME = "kafka-tmp"
_MAX_INT = 2**31 - 1
_MAX_MESSAGE_BYTES = 16 * 2**20

_JVM_FLAGS = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    # The compression libraries unpack themselves here, not into a directory that all share.
    f"-Djava.io.tmpdir={_SCRATCH_NAME}",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
)

_SETTINGS: dict[str, str | int] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "log.dirs": NAME,
    "auto.create.topics.enable": "false",
    "message.max.bytes": _MAX_MESSAGE_BYTES,
    "replica.fetch.max.bytes": _MAX_MESSAGE_BYTES,
    # One node: every internal topic has one replica, and few partitions load fast.
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 4,
    # A run may be resumed after any pause.
    "offsets.retention.minutes": _MAX_INT,
    # A dead member is replaced after 6 s instead of 45.
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.heartbeat.interval.ms": 1000,
    "group.consumer.min.heartbeat.interval.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    # A killed broker takes writes again after 6 s instead of 14.
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
    # An orphaned transaction holds its readers for its timeout plus this, so 1 s was tried: a scan
    # so soon after a restart ends transactions without their markers, and readers wait for ever.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    # Sized for a laptop: the defaults are for a machine of its own.
    "num.network.threads": 2,
    "num.io.threads": 4,
    "background.threads": 4,
    "log.cleaner.dedupe.buffer.size": 32 * 2**20,
}


def kafka_server(
    directory: Path,
    *,
    java: Path,
    jars: Sequence[Path],
    ports: Mapping[str, int],
) -> ServerProcess:
    """The broker of a directory, to be started; its data is ``kafka/`` in there.

    Args:
        directory: The stack's directory, absolute.
        java: Launcher of a Java runtime, 17 or newer.
        jars: The broker's class path.
        ports: ``kafka`` and ``kafka_controller``.
    """
    bootstrap = f"{LOOPBACK}:{ports['kafka']}"
    return ServerProcess(
        service=Service(
            name=NAME,
            argv=_java_argv(java, jars, "kafka.Kafka", _SETTINGS_NAME),
            env=_java_env(),
            directory=directory,
            stop_stage=SERVER_STAGE,
        ),
        port=ports["kafka"],
        probe=lambda timeout_s: probe_broker(bootstrap, timeout_s=timeout_s),
        awaited=f"answer clients at {bootstrap}",
    )


def prepare_broker(
    directory: Path,
    *,
    java: Path,
    jars: Sequence[Path],
    ports: Mapping[str, int],
    timeout_s: float,
) -> None:
    """Write the broker's settings, and format its storage if that was never done.

    Raises:
        TransientError: Formatting failed or took longer than ``timeout_s``; with its log.
    """
    settings = {**_SETTINGS, **_addresses(ports)}
    lines = [f"{key}={value}\n" for key, value in settings.items()]
    (directory / _SETTINGS_NAME).write_text("".join(lines), encoding="ascii")
    shutil.rmtree(directory / _SCRATCH_NAME, ignore_errors=True)
    (directory / _SCRATCH_NAME).mkdir()
    if not (directory / NAME / "meta.properties").exists():
        _format(directory, java, jars, timeout_s)


def _addresses(ports: Mapping[str, int]) -> dict[str, str]:
    clients = f"PLAINTEXT://{LOOPBACK}:{ports['kafka']}"
    controller = f"{LOOPBACK}:{ports['kafka_controller']}"
    return {
        "listeners": f"{clients},CONTROLLER://{controller}",
        "advertised.listeners": clients,
        "controller.quorum.bootstrap.servers": controller,
    }


def _format(directory: Path, java: Path, jars: Sequence[Path], timeout_s: float) -> None:
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # Kafka takes an id that starts with a dash for an option.
    cluster_id = cluster_id.replace("-", "A", 1) if cluster_id.startswith("-") else cluster_id
    tool = ("kafka.tools.StorageTool", "format", "--standalone", "--ignore-formatted")
    log_path = directory / "logs" / "kafka-format.log"
    process = spawn(
        _java_argv(java, jars, *tool, "-t", cluster_id, "-c", _SETTINGS_NAME),
        log_path=log_path,
        env=_java_env(),
        directory=directory,
    )
    try:
        code = wait_exit(process, timeout_s)
    finally:
        process.kill()
        process.wait()
    if code != 0:
        got = f"no end after {timeout_s:.0f} s" if code is None else f"exit code {code}"
        raise failure(
            f"kafka storage must be formatted: got {got}. Its log, {log_path}, ends:",
            log_tail(log_path),
        )


def _java_argv(java: Path, jars: Sequence[Path], *arguments: str) -> tuple[str, ...]:
    class_path = ":".join(str(jar) for jar in jars)
    return (str(java), *_JVM_FLAGS, "-cp", class_path, *arguments)


def _java_env() -> dict[str, str]:
    # In the plain C locale Java cannot name a directory outside ASCII.
    return {} if "UTF-8" in os.environ.get("LC_ALL", "") else {"LC_ALL": "C.UTF-8"}


def probe_broker(bootstrap: str, *, timeout_s: float) -> str | None:
    """Ask a broker for its metadata.

    Returns:
        None if it answered, else why not.

    Raises:
        ConfigError: The Kafka client is not installed.
    """
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise ConfigError(
            "the embedded broker must be asked whether it is up: got no package "
            "'confluent-kafka'. Run pip install astra-stream."
        ) from error
    # With a logger set, the client writes no line of its own to stderr.
    admin = AdminClient({"bootstrap.servers": bootstrap}, logger=_silent_logger())
    try:
        brokers = admin.list_topics(timeout=timeout_s).brokers
    except KafkaException as error:
        return str(error.args[0])
    return None if brokers else "no broker in its metadata"


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
