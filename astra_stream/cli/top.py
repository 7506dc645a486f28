"""``astra top``: watch a run from another terminal."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from astra_stream.cli.options import AsJson, Overrides, StackDirectory
from astra_stream.cli.output import print_facts, print_json
from astra_stream.cli.run_directory import run_file_of, running_stack

if TYPE_CHECKING:
    from astra_stream.analysis import RunState, RunTail
    from astra_stream.cli.live import LiveView
    from astra_stream.local.stack import StackInfo

POLL_S = 0.5

Where = Annotated[Path, Parameter(help="Directory of the run, or its run file.")]


def top(
    where: Where,
    *,
    once: Annotated[bool, Parameter(help="Print how things stand, and end.", negative=())] = False,
    as_json: AsJson = False,
    overrides: Overrides = (),
    stack: StackDirectory = None,
) -> None:
    """Show a run as it goes on, until it is over or Ctrl-C; the run does not notice."""
    from astra_stream.analysis import RunTail, summarise, summary_json, summary_table
    from astra_stream.cli.connect import open_log
    from astra_stream.cli.live import LiveView
    from astra_stream.cli.stalls import stall_watch
    from astra_stream.clock import SystemClock
    from astra_stream.config import load_run
    from astra_stream.declarations import declared
    from astra_stream.log.codec import Codec
    from astra_stream.log.names import TopicNames

    config = load_run(run_file_of(where), overrides)
    found = running_stack(config, where, stack)
    clock, topics, policy = SystemClock(), TopicNames(config.run), config.policy_name
    codec = Codec(declared("schemas"))
    with (
        contextlib.closing(open_log(config, found)) as log,
        RunTail(log, codec, topics=topics, policy=policy, clock=clock) as tail,
    ):
        state = tail.catch_up()
        stalls = stall_watch(config, found, log, codec)
        if once or as_json:
            summary = summarise(state, run=config.run, policy=policy, services=server_states(found))
            if as_json:
                print_json(summary_json(summary))
            else:
                facts = dict(summary_table(summary, steps=config.steps))
                stall = stalls.line(state, clock.now_s())
                print_facts(config.run, facts | ({"stands still": stall} if stall else {}))
            return
        view = LiveView(f"{config.run}  {policy}", steps=config.steps, clock=clock)
        with view, contextlib.suppress(KeyboardInterrupt):
            watch(
                tail,
                view,
                is_evaluated=config.evaluate is not None,
                services=lambda: server_states(found),
                stall=lambda state: stalls.line(state, clock.now_s()),
            )


def watch(
    tail: "RunTail",
    view: "LiveView",
    *,
    is_evaluated: bool,
    services: Callable[[], Mapping[str, str]],
    stall: Callable[["RunState"], str],
) -> None:
    """Show what the topics say until the run is over.

    Args:
        tail: Reads the topics.
        view: Shows them.
        is_evaluated: Whether the run ends with an evaluation.
        services: How each process is, asked at every update.
        stall: What the run waits for where it stands still, asked at every update.
    """
    while True:
        view.update(tail.state, services(), stall=stall(tail.state))
        if tail.state.is_final and (tail.state.is_evaluated or not is_evaluated):
            return
        tail.poll(POLL_S)


def server_states(stack: "StackInfo | None") -> dict[str, str]:
    """Each server of an embedded stack, with its pid."""
    servers = stack.servers.items() if stack else ()
    return {
        name: f"pid {server.pid}" if server.is_alive() else f"pid {server.pid}, gone"
        for name, server in servers
    }
