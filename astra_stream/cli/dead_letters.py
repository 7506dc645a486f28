"""``astra dead-letters``: what could not be processed, why, and another try."""

import contextlib
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from astra_stream.cli.options import AsJson
from astra_stream.cli.output import print_facts, print_json, print_rows
from astra_stream.cli.report import started_stack
from astra_stream.cli.run_directory import RunDirectory, run_file_of
from astra_stream.errors import AstraStreamError, ConfigError

if TYPE_CHECKING:
    from astra_stream.log.codec import Codec
    from astra_stream.log.interface import Log, Message
    from astra_stream.log.names import TopicNames
    from astra_stream.records import DeadLetter

app = App(name="dead-letters", help="List, show and replay what could not be processed.")

SHOWN_BYTES = 64

Letter = Annotated[str, Parameter(help="Where the record stood: topic[partition]@offset.")]


@dataclass(frozen=True)
class RunLog:
    """A run's log, and what reads it."""

    log: "Log"
    codec: "Codec"
    names: "TopicNames"

    def records(self, topic: str) -> list[Any]:
        """Every committed record of a topic."""
        from astra_stream.clock import SystemClock
        from astra_stream.log.reading import read_to_end

        messages = read_to_end(self.log, topic, clock=SystemClock())
        return [self.codec.decode(message.value or b"") for message in messages]

    def letters(self) -> "dict[str, DeadLetter]":
        """Dead letters by the coordinates of the record that they hold."""
        found = self.records(self.names.dead_letters)
        return {f"{one.topic}[{one.partition}]@{one.offset}": one for one in found}

    def letter(self, where: str) -> "DeadLetter":
        """One of them.

        Raises:
            ConfigError: There is none of these coordinates.
        """
        letters = self.letters()
        if where not in letters:
            raise ConfigError(
                f"{where} must be the coordinates of a dead letter: got one of "
                f"{sorted(letters) or 'none'}. See astra dead-letters list."
            )
        return letters[where]


@app.command(name="list")
def list_letters(directory: RunDirectory, *, as_json: AsJson = False) -> None:
    """List the dead letters of a run, by the coordinates of the records that they hold."""
    with opened(directory) as run:
        letters = run.letters()
    rows = [{"record": where, **summary(one)} for where, one in letters.items()]
    if as_json:
        print_json(rows)
    else:
        print_rows(f"{len(rows)} dead letters", rows)


@app.command
def show(
    directory: RunDirectory,
    where: Letter,
    *,
    save: Annotated[Path | None, Parameter(help="Write the record's bytes here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter whole: the error, its stack, and the record where it can be read."""
    with opened(directory) as run:
        one = run.letter(where)
        content = readable(one, run.codec)
    if save is not None:
        save.write_bytes(one.value)
    facts = {"record": where, **summary(one), "stack": one.stack, **content}
    if as_json:
        print_json(facts)
    else:
        print_facts(where, facts)


@app.command
def replay(
    directory: RunDirectory,
    *where: Letter,
    everything: Annotated[bool, Parameter(name="--all", negative=())] = False,
) -> None:
    """Write records again to the end of the topic and partition that they stood in.

    For when what refused them is corrected. One whose group has ended meanwhile is left out: the
    group was given up with it, and would end twice.

    Args:
        directory: Directory of the run.
        where: Which records.
        everything: All of them.
    """
    with opened(directory) as run:
        letters = run.letters() if everything else {name: run.letter(name) for name in where}
        again = replayable(run, letters)
        write_again(run, again.values())
    for name in letters.keys() - again.keys():
        print(f"astra: {name} is left out: its group has ended", file=sys.stderr)
    print(f"{len(again)} of {len(letters)} records written again")


def replayable(run: RunLog, letters: "Mapping[str, DeadLetter]") -> "dict[str, DeadLetter]":
    """Those whose group, where they name one, has not ended."""
    ended = {o.group_id for o in run.records(run.names.outcomes) if o.event != "completed"}
    return {where: one for where, one in letters.items() if group_of(one) not in ended}


def write_again(run: RunLog, letters: "Iterable[DeadLetter]") -> None:
    """Write the records of dead letters in one transaction."""
    with (
        contextlib.closing(run.log.writer(run.names.group("dead-letters"))) as writer,
        writer.transaction() as txn,
    ):
        for one in letters:
            record = original(run, one) if one.is_cut else one
            headers = list(dict(record.headers).items())
            key = record.key or None
            txn.write(one.topic, key, record.value, partition=one.partition, headers=headers)


def original(run: RunLog, letter: "DeadLetter") -> "Message":
    """The record of a letter that holds only a part of it, from where it stood.

    Raises:
        AstraStreamError: It is no longer in the log.
        TransientError: The log does not answer.
    """
    from astra_stream.log.interface import Partition
    from astra_stream.log.reading import read_one

    return read_one(run.log, Partition(letter.topic, letter.partition), letter.offset)


def group_of(letter: "DeadLetter") -> str | None:
    """The group that the record was part of, as far as it says so."""
    from astra_stream.log.processor import GROUP_HEADER

    group_id = letter.headers.get(GROUP_HEADER)
    return None if group_id is None else group_id.decode(errors="replace")


def summary(letter: "DeadLetter") -> dict[str, str]:
    """What a list says of a dead letter."""
    cut = {"cut": f"{len(letter.value):,} of {letter.num_bytes:,} bytes"} if letter.is_cut else {}
    return cut | {
        "service": letter.service,
        "stage": letter.stage,
        "error": f"{letter.error_kind}: {letter.error}",
    }


def readable(letter: "DeadLetter", codec: "Codec") -> Mapping[str, Any]:
    """The record's content, or the start of its bytes where it does not decode."""
    try:
        return {"content": repr(codec.decode(letter.value))}
    except AstraStreamError:
        head = letter.value[:SHOWN_BYTES].hex(" ")
        return {"bytes": f"{len(letter.value):,}", "first bytes": head}


@contextlib.contextmanager
def opened(directory: Path) -> Generator[RunLog]:
    """The log of a run, whose embedded broker is started where it is stopped."""
    from astra_stream.cli.connect import open_log
    from astra_stream.config import load_run
    from astra_stream.declarations import declared
    from astra_stream.log.codec import Codec
    from astra_stream.log.names import TopicNames

    config = load_run(run_file_of(directory))
    with (
        started_stack(config, directory) as stack,
        contextlib.closing(open_log(config, stack)) as log,
    ):
        yield RunLog(log, Codec(declared("schemas")), TopicNames(config.run))
