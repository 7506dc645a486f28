"""``astra sweep``: finds objects that nothing names, and deletes those that nothing can name."""

import contextlib
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from astra_stream.cli.options import AsJson
from astra_stream.cli.output import print_json, print_rows
from astra_stream.cli.report import started_stack
from astra_stream.cli.run_directory import RunDirectory, run_file_of
from astra_stream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from astra_stream.analysis.orphans import Orphan

SHOWN = 20
"""Objects in the table; all are in the JSON."""


def sweep(
    directory: RunDirectory,
    *,
    grace: Annotated[str, Parameter(help="Age below which nothing is deleted.")] = "1h",
    delete: Annotated[bool, Parameter(help="Delete them.", negative=())] = False,
    as_json: AsJson = False,
) -> None:
    """List a run's objects that no announcement and no checkpoint names; delete them if asked.

    A run may go on meanwhile: what its trainer may still announce stays, however old it is. An
    embedded broker that is stopped is started, and stopped again.
    """
    from astra_stream.analysis.orphans import read_orphans
    from astra_stream.cli.connect import open_log, open_store
    from astra_stream.clock import SystemClock
    from astra_stream.config import load_run
    from astra_stream.declarations import declared
    from astra_stream.log.codec import Codec
    from astra_stream.log.names import TopicNames

    grace_s = as_seconds(grace)
    config = load_run(run_file_of(directory))
    with (
        started_stack(config, directory) as stack,
        contextlib.closing(open_log(config, stack)) as log,
        contextlib.closing(open_store(config, stack)) as store,
    ):
        found = read_orphans(
            log,
            Codec(declared("schemas")),
            store,
            topic=TopicNames(config.run).weights(config.policy_name),
            policy=config.policy_name,
            grace_s=grace_s,
            clock=SystemClock(),
        )
        for one in found:
            if delete and not one.kept:
                store.delete(one.key)
    if as_json:
        print_json([as_object(one, delete=delete) for one in found])
    else:
        show(found, title=config.run, delete=delete)


def as_seconds(grace: str) -> float:
    """What ``--grace`` says, seconds.

    Raises:
        ConfigError: It is no duration.
    """
    from astra_stream.config import seconds

    try:
        return seconds(grace)
    except ValueError as error:
        raise ConfigError(f"--grace {error}") from None


def as_object(orphan: "Orphan", *, delete: bool) -> dict[str, Any]:
    """What ``--json`` prints of an object."""
    return {**asdict(orphan), "deleted": delete and not orphan.kept}


def show(found: "Sequence[Orphan]", *, title: str, delete: bool) -> None:
    """Print how many there are, and the first of them."""
    done = "deleted" if delete else "may be deleted: --delete does it"
    fates = Counter(one.kept or done for one in found)
    sizes = Counter[str]()
    for one in found:
        sizes[one.kept or done] += one.size_bytes
    rows = [
        {"objects": f"{count:,}", "bytes": f"{sizes[fate]:,}", "what becomes of them": fate}
        for fate, count in fates.items()
    ]
    print_rows(f"{title}: {len(found)} objects that nothing names", rows)
    shown = [
        {"object": one.key, "age": f"{one.age_s:,.0f} s", "what becomes of it": one.kept or done}
        for one in found[:SHOWN]
    ]
    if shown:
        print_rows(f"{len(shown)} of {len(found)}", shown)
