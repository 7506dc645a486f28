"""The results that were kept, and the last answer of each benchmark as Markdown."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]
"""What ``--json`` of a benchmark writes, and ``at``: when it was measured."""
Row = Mapping[str, Any]
"""One of the rows in it."""

BEGIN, END = "<!-- answers: written by run_all.py -->", "<!-- end of answers -->"
DIGITS = 4
LARGE = 1000
MET = {None: "", True: "met", False: "MISSED"}


def read_results(path: Path) -> dict[str, Answer]:
    """Benchmark to answer of one file; empty where there is none."""
    found: dict[str, Answer] = json.loads(path.read_text())["benchmarks"] if path.exists() else {}
    return found


def last_answers(directory: Path) -> dict[str, Answer]:
    """The newest answer of each benchmark over all files, by name."""
    newest: dict[str, Answer] = {}
    for path in directory.glob("*.json"):
        for name, answer in read_results(path).items():
            if name not in newest or newest[name]["at"] < answer["at"]:
                newest[name] = answer
    return dict(sorted(newest.items()))


def missed_rows(answers: Mapping[str, Answer]) -> list[str]:
    """One line for each row that misses its goal."""
    return [
        f"{name}: {row['name']} is {short(row['value'])} {row['unit']}, goal {short(row['goal'])}"
        for name, answer in answers.items()
        for row in answer["rows"]
        if row["met"] is False
    ]


def update_document(path: Path, answers: Mapping[str, Answer]) -> None:
    """Put the answers between the two marks of a Markdown file."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n\n{''.join(sections(answers))}{END}{after}")


def sections(answers: Mapping[str, Answer]) -> Iterator[str]:
    for name, answer in answers.items():
        machine = answer["machine"]
        yield f"### {name}\n\n{answer['question']}\n\n"
        yield f"`{answer['command']}`\n\n"
        yield (
            f"{answer['at'][:10]}, commit {answer['commit']}, {machine['cores']} cores of "
            f"{machine['cpu']}, load {machine['load_average']} at the end.\n\n"
        )
        yield table(answer["rows"]) + "\n"


def table(rows: Sequence[Row]) -> str:
    lines = ["| | value | unit | baseline | goal | |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join([row['name'], *cells(row)])} |" for row in rows]
    return "\n".join(lines) + "\n"


def cells(row: Row) -> list[str]:
    """Value, unit, baseline, goal and whether it is met, as text."""
    value, baseline, goal = (short(row[name]) for name in ("value", "baseline", "goal"))
    return [value, row["unit"], baseline, goal, MET[row["met"]]]


def short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= LARGE else f"{value:.{DIGITS}g}"
