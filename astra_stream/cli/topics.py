"""``astra topics``: what a run's topics lack, and making it so. Services never create topics."""

from typing import TYPE_CHECKING

from cyclopts import App

from astra_stream.cli.options import AsJson, Overrides, RunFile, StackDirectory
from astra_stream.cli.output import print_json, print_rows

if TYPE_CHECKING:
    from astra_stream.config import RunConfig
    from astra_stream.log.interface import LogAdmin, TopicSettings
    from astra_stream.log.topics import Change

app = App(name="topics", help="Plan and make a run's topics.")

STATE = "state"
"""Name of a processor's only state."""


@app.command
def plan(
    run_file: RunFile,
    *,
    overrides: Overrides = (),
    stack: StackDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Say what ``astra topics apply`` would do."""
    from astra_stream.cli.connect import find_stack, open_admin
    from astra_stream.config import load_run

    config = load_run(run_file, overrides)
    changes = planned_changes(config, open_admin(config, find_stack(stack)))
    _print(config.run, changes, as_json=as_json)


@app.command
def apply(
    run_file: RunFile,
    *,
    overrides: Overrides = (),
    stack: StackDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Make the run's topics and set their configuration; doing it again changes nothing."""
    from astra_stream.cli.connect import find_stack, open_admin
    from astra_stream.config import load_run

    config = load_run(run_file, overrides)
    changes = apply_topics(config, open_admin(config, find_stack(stack)))
    _print(config.run, changes, as_json=as_json)


def apply_topics(config: "RunConfig", admin: "LogAdmin") -> "list[Change]":
    """Make what a run lacks, and return it.

    Raises:
        ConfigError: A topic has another number of partitions than declared.
        TransientError: The log cannot be reached in time.
    """
    from astra_stream.log.topics import apply as apply_changes

    changes = planned_changes(config, admin)
    apply_changes(changes, admin)
    return changes


def planned_changes(config: "RunConfig", admin: "LogAdmin") -> "list[Change]":
    """What a run lacks.

    Raises:
        ConfigError: A topic has another number of partitions than declared.
        TransientError: The log cannot be reached in time.
    """
    from astra_stream.log.names import TopicNames
    from astra_stream.log.topics import plan as plan_changes

    return plan_changes(run_topics(config), admin.topics(TopicNames(config.run).prefix))


def run_topics(config: "RunConfig") -> "list[TopicSettings]":
    """Every topic that a run needs, changelogs included."""
    from astra_stream.declarations import declared
    from astra_stream.log.names import TopicNames
    from astra_stream.log.topics import declared_topics, read_declarations

    directory = declared("topics")
    names = TopicNames(config.run)
    policy = config.policy_name
    singletons = [names.group("scheduler"), names.group("assembler", policy)]
    singletons.append(names.group("evaluator", policy))
    changelogs = {names.changelog(group, STATE): 1 for group in singletons}
    declarations = read_declarations(directory)
    one_each = dict.fromkeys(declarations, 1) if config.repeatable else {}
    followed = one_each.get("trajectories", declarations["trajectories"].partitions)
    changelogs[names.changelog(names.group("pipeline", policy), STATE)] = followed
    return declared_topics(
        config.run, [policy], ["main"], changelogs, directory=directory, partitions=one_each
    )


def _print(run: str, changes: "list[Change]", *, as_json: bool) -> None:
    rows = [
        {"change": change.kind, "topic": change.topic.name, "detail": change.detail}
        for change in changes
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(f"topics of {run}" if rows else f"topics of {run}: as declared", rows)
