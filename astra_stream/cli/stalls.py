"""A watch over the stalls of a run, for whatever shows one."""

import contextlib
import functools
from typing import TYPE_CHECKING

from astra_stream.cli.connect import open_store
from astra_stream.errors import AstraStreamError

if TYPE_CHECKING:
    from astra_stream.analysis.stalls import StallWatch
    from astra_stream.config import RunConfig
    from astra_stream.local.stack import StackInfo
    from astra_stream.log.codec import Codec
    from astra_stream.log.interface import Log

STORE_S = 5.0
"""Seconds that the store has for an answer: whoever shows the run waits for it."""


def stall_watch(
    config: "RunConfig",
    stack: "StackInfo | None",
    log: "Log",
    codec: "Codec",
    *,
    since_s: float = 0.0,
) -> "StallWatch":
    """Make what says why a run stands still.

    Args:
        config: The run.
        stack: Its embedded servers, if it has any.
        log: Where its topics are; the watch neither joins a group nor writes.
        codec: Reads records.
        since_s: Unix time before which silence does not count: when the services started.
    """
    from astra_stream.algorithms.scheduling import AdmissionRule
    from astra_stream.analysis.open_work import OpenWorkReader
    from astra_stream.analysis.stalls import StallWatch
    from astra_stream.clock import SystemClock
    from astra_stream.log.names import TopicNames

    policy = config.policy
    reader = OpenWorkReader(
        log=log,
        codec=codec,
        topics=TopicNames(config.run),
        policy=config.policy_name,
        max_staleness=policy.max_staleness,
        clock=SystemClock(),
    )
    return StallWatch(
        reader.read,
        functools.partial(store_trouble, config, stack),
        rule=AdmissionRule(
            groups_per_batch=policy.batch.groups,
            max_staleness=policy.max_staleness,
            steps=config.steps,
        ),
        is_evaluated=config.evaluate is not None,
        since_s=since_s,
    )


def store_trouble(config: "RunConfig", stack: "StackInfo | None") -> str:
    """Why the run's store does not answer; empty where it does."""
    with contextlib.closing(open_store(config, stack, deadline_s=STORE_S)) as store:
        try:
            next(store.list(""), None)
        except AstraStreamError as error:
            return str(error)
    return ""
