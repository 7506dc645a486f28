"""From a run file to a log and a store: the user's own, or those of the embedded stack."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astra_stream.errors import ConfigError

if TYPE_CHECKING:
    from astra_stream.config import RunConfig
    from astra_stream.local.stack import StackInfo
    from astra_stream.log.kafka import KafkaLog
    from astra_stream.log.kafka_admin import KafkaAdmin
    from astra_stream.store.s3 import S3Store

STACK_VARIABLE = "ASTRA_STACK"
"""Environment variable with the directory of a running embedded stack."""


def find_stack(directory: Path | None = None) -> "StackInfo | None":
    """The embedded stack to use: of ``directory``, else of ``ASTRA_STACK``, else none."""
    named = directory or os.environ.get(STACK_VARIABLE)
    if not named:
        return None
    from astra_stream.local.stack import read_stack

    return read_stack(Path(named))


def open_log(config: "RunConfig", stack: "StackInfo | None") -> "KafkaLog":
    """The run's log.

    Raises:
        ConfigError: Neither the run file nor a stack says where it is, or a secret is missing.
    """
    from astra_stream.log.kafka import KafkaLog

    bootstrap, options = _broker(config, stack)
    return KafkaLog(bootstrap, **options)


def open_admin(config: "RunConfig", stack: "StackInfo | None") -> "KafkaAdmin":
    """What makes the run's topics.

    Raises:
        ConfigError: As for ``open_log``.
    """
    from astra_stream.log.kafka_admin import KafkaAdmin

    bootstrap, options = _broker(config, stack)
    return KafkaAdmin(bootstrap, **options)


def open_store(
    config: "RunConfig", stack: "StackInfo | None", *, deadline_s: float | None = None
) -> "S3Store":
    """The run's objects: below the store's prefix and the run's name.

    Args:
        config: The run.
        stack: Its embedded servers, if it has any.
        deadline_s: Seconds that one call may go on trying; None takes the run file's.

    Raises:
        ConfigError: As for ``open_log``.
    """
    from astra_stream.store.s3 import DEADLINE_S, S3Store

    store = config.store
    if store is not None:
        return S3Store(
            f"{store.url.rstrip('/')}/{config.run}",
            endpoint=store.endpoint,
            access_key=_secret(store.access_key_env, "store.access_key_env"),
            secret_key=_secret(store.secret_key_env, "store.secret_key_env"),
            region=store.region,
            deadline_s=store.deadline if deadline_s is None else deadline_s,
            checksums=store.checksums,
        )
    if stack is None:
        raise _nowhere("store")
    return S3Store(
        f"{stack.store_url.rstrip('/')}/{config.run}",
        endpoint=stack.s3_endpoint,
        access_key=stack.s3_access_key,
        secret_key=stack.s3_secret_key,
        region="us-east-1",
        deadline_s=DEADLINE_S if deadline_s is None else deadline_s,
    )


def _broker(config: "RunConfig", stack: "StackInfo | None") -> tuple[str, dict[str, Any]]:
    """The address, and what clients are told besides."""
    kafka = config.kafka
    if kafka is None:
        if stack is None:
            raise _nowhere("kafka")
        return stack.bootstrap, {}
    security: dict[str, str] = {"security.protocol": kafka.security}
    if kafka.ca is not None:
        security["ssl.ca.location"] = str(kafka.ca)
    if kafka.security.startswith("SASL"):
        security["sasl.mechanism"] = kafka.mechanism
        security["sasl.username"] = _secret(kafka.username_env, "kafka.username_env")
        security["sasl.password"] = _secret(kafka.password_env, "kafka.password_env")
    return kafka.bootstrap, {"security": security, "deadline_s": kafka.deadline}


def _secret(variable: str | None, key: str) -> str:
    if variable is None:
        raise ConfigError(f"{key} must be given: got nothing. Name an environment variable.")
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(
            f"environment variable {variable} must be set: got nothing. {key} names it."
        )
    return value


def _nowhere(table: str) -> ConfigError:
    return ConfigError(
        f"[{table}] must be in the run file, or an embedded stack must be named: got neither. "
        f"Start one with 'astra up DIR' and pass --stack DIR, or set {STACK_VARIABLE}."
    )
