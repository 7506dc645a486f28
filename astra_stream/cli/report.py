"""``astra report``: what a run came to, from its topics or, where they are gone, its summary."""

import contextlib
import dataclasses
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from astra_stream.cli.options import AsJson
from astra_stream.cli.output import print_facts, print_json
from astra_stream.cli.run_directory import PICTURE_FILE, RunDirectory, run_file_of
from astra_stream.errors import ConfigError, TransientError

if TYPE_CHECKING:
    from astra_stream.analysis import RunState, Summary
    from astra_stream.config import RunConfig
    from astra_stream.local.stack import StackInfo


def report(directory: RunDirectory, *, as_json: AsJson = False) -> None:
    """Show what a run came to, and write its summary.json and run.png again.

    Reads the run's topics, for which an embedded broker that is stopped is started and stopped
    again. Where that cannot be, summary.json is shown as it is.
    """
    from astra_stream.analysis import draw, read_summary, summarise, write_summary
    from astra_stream.config import load_run

    config = load_run(run_file_of(directory))
    former = read_summary(directory)
    try:
        state = read_state(config, directory)
    except (ConfigError, TransientError) as error:
        if former is None:
            raise
        print(f"astra: shown from summary.json: {error}", file=sys.stderr)
        show(former, config, as_json=as_json)
        return
    found = summarise(state, run=config.run, policy=config.policy_name)
    summary = carried_over(found, former)
    show(summary, config, as_json=as_json)
    write_summary(summary, directory)
    draw(
        state,
        directory / PICTURE_FILE,
        title=f"{config.run}, policy {config.policy_name}",
        max_staleness=config.policy.max_staleness,
    )


def show(summary: "Summary", config: "RunConfig", *, as_json: bool) -> None:
    """Print a summary as a table or as JSON."""
    from astra_stream.analysis import summary_json, summary_table

    if as_json:
        print_json(summary_json(summary))
    else:
        print_facts(config.run, dict(summary_table(summary, steps=config.steps)))


def carried_over(summary: "Summary", former: "Summary | None") -> "Summary":
    """Add what topics do not say, the run's own wall time and services, from a former summary.

    A former summary of other weights speaks of another stage of the run and adds nothing.
    """
    if former is None or former.root_hash != summary.root_hash:
        return summary
    return dataclasses.replace(summary, wall_s=former.wall_s, services=former.services)


def read_state(config: "RunConfig", directory: Path) -> "RunState":
    """What a run's topics say.

    Raises:
        ConfigError: There is no broker to ask, or a topic is missing.
        TransientError: The broker does not start or answer in time.
    """
    from astra_stream.analysis import RunTail
    from astra_stream.cli.connect import open_log
    from astra_stream.clock import SystemClock
    from astra_stream.declarations import declared
    from astra_stream.log.codec import Codec
    from astra_stream.log.names import TopicNames

    with (
        started_stack(config, directory) as stack,
        contextlib.closing(open_log(config, stack)) as log,
        RunTail(
            log,
            Codec(declared("schemas")),
            topics=TopicNames(config.run),
            policy=config.policy_name,
            clock=SystemClock(),
        ) as tail,
    ):
        return tail.catch_up()


@contextlib.contextmanager
def started_stack(config: "RunConfig", directory: Path) -> "Generator[StackInfo | None]":
    """The run's embedded stack, running; stopped afterwards if it was not. None if it has none."""
    from astra_stream.local.stack import read_stack, start_stack

    if config.kafka is not None:
        yield None
        return
    info = read_stack(directory)
    if info.is_running():
        yield info
        return
    with start_stack(directory, java=config.local.java) as stack:
        yield stack.info
