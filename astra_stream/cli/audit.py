"""``astra audit``: proves from topics and bucket what was promised, or says what broke."""

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from astra_stream.cli.options import AsJson
from astra_stream.cli.output import print_facts, print_json, print_rows
from astra_stream.cli.report import started_stack
from astra_stream.cli.run_directory import RunDirectory, run_file_of
from astra_stream.errors import WeightsError

if TYPE_CHECKING:
    from astra_stream.analysis.audit import AuditReport
    from astra_stream.analysis.ledger import Ledger
    from astra_stream.config import RunConfig
    from astra_stream.local.stack import StackInfo
    from astra_stream.training.torch_backend import TorchBackend

SHOWN = 20
"""Violations in the table; all are in the JSON."""


def audit(
    directory: RunDirectory,
    *,
    retrain: Annotated[
        bool, Parameter(help="Train all batches again and compare hashes.", negative=())
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Compare a run's requests, samples, batches, versions and objects with one another.

    A run may go on meanwhile: what has not ended yet is open, not lost. An embedded broker that is
    stopped is started, and stopped again. Exit code: 1 where there is a violation.
    """
    from astra_stream.config import load_run

    config = load_run(run_file_of(directory))
    with started_stack(config, directory) as stack:
        found = audited(config, stack, retrain=retrain)
    if as_json:
        print_json(as_object(found))
    else:
        show(found, title=config.run)
    return 1 if found.violations else 0


def audited(
    config: "RunConfig", stack: "StackInfo | None", *, retrain: bool = False
) -> "AuditReport":
    """Audit a run whose broker and store answer.

    Raises:
        ConfigError: A topic is missing.
        TransientError: The log or the store cannot be reached.
    """
    from astra_stream.analysis.audit import audit as compare
    from astra_stream.analysis.ledger import read_ledger
    from astra_stream.cli.connect import open_log
    from astra_stream.clock import SystemClock
    from astra_stream.declarations import declared
    from astra_stream.log.codec import Codec
    from astra_stream.log.names import TopicNames
    from astra_stream.training.retraining import train_again

    codec, topics, clock = Codec(declared("schemas")), TopicNames(config.run), SystemClock()
    with contextlib.closing(open_log(config, stack)) as log:
        ledger = read_ledger(
            log,
            codec,
            topics=topics,
            policy=config.policy_name,
            max_staleness=config.policy.max_staleness,
            clock=clock,
        )
        if retrain:
            batches_topic = topics.batches(config.policy_name)
            hashes = train_again(
                log, codec, new_backend(config), batches_topic=batches_topic, clock=clock
            )
            ledger.retrained = dict(hashes)
    look_into_store(ledger, config, stack)
    return compare(ledger)


def new_backend(config: "RunConfig") -> "TorchBackend":
    """A trainer as the run began it, with as many threads, which decide the rounding."""
    from astra_stream.cli.assembly import make_backend
    from astra_stream.cli.binding import RunPlugins
    from astra_stream.cli.run import threads_each

    return make_backend(config, RunPlugins(config, config.run), threads_each(config))


def look_into_store(ledger: "Ledger", config: "RunConfig", stack: "StackInfo | None") -> None:
    """Enter the objects that are there, and what the announced checkpoints name."""
    from astra_stream.cli.connect import open_store
    from astra_stream.training.checkpoints import checkpoint_objects

    keys = {one.record.checkpoint for one in ledger.announced} - {""}
    with contextlib.closing(open_store(config, stack)) as store:
        ledger.present = {found.key: found.size_bytes for found in store.list("")}
        for key in keys & ledger.present.keys():
            try:
                ledger.checkpoints[key] = checkpoint_objects(store, key)
            except WeightsError as error:
                ledger.unreadable[key] = str(error)


def as_object(found: "AuditReport") -> dict[str, Any]:
    """What ``--json`` prints."""
    return dataclasses.asdict(found)


def show(found: "AuditReport", *, title: str) -> None:
    """Print the counts, and the first violations."""
    facts = {
        "state": "finished" if found.finished else "goes on",
        "groups": f"{found.groups:,}, {found.open_groups:,} open",
        **{f"  {how}": f"{count:,}" for how, count in found.endings.items()},
        "samples": f"{found.samples:,} and {found.evaluation_samples:,} of evaluations",
        "batches": f"{found.batches:,}",
        "versions": f"{found.versions:,}",
        "dead letters": f"{found.dead_letters:,}",
        "objects that nothing names": f"{len(found.orphans):,}",
        "lost": f"{found.lost:,}",
        "twice": f"{found.duplicated:,}",
        "violations": f"{len(found.violations):,}",
    }
    print_facts(title, facts)
    if found.violations:
        rows = [dataclasses.asdict(violation) for violation in found.violations[:SHOWN]]
        print_rows(f"{len(rows)} of {len(found.violations)} violations", rows)
