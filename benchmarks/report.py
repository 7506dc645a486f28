"""What every benchmark prints and writes: a table, and with ``--json PATH`` one object.

{question, command, commit, machine, rows: [{name, value, unit, baseline, goal, met}]}
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number, what it is compared with, and what it should be."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    """The same measure of the usual way to do it, in the same run."""
    goal: float | None = None
    higher_is_better: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.higher_is_better else self.value <= self.goal


def parser(question: str) -> argparse.ArgumentParser:
    """The command line of a benchmark; add its own options to it."""
    made = argparse.ArgumentParser(description=question)
    made.add_argument("--json", type=Path, metavar="PATH", help="also write the rows to PATH")
    return made


def write(question: str, rows: Sequence[Row], *, json_path: Path | None = None) -> None:
    """Print the rows as a table, and write them as JSON where a path is given."""
    print(question)
    widths = [max(len(row.name) for row in rows), 12, 8, 12, 12]
    heads = ["", "value", "unit", "baseline", "goal"]
    print("  ".join(head.rjust(width) for head, width in zip(heads, widths, strict=True)))
    for row in rows:
        sign = ">=" if row.higher_is_better else "<="
        goal = "" if row.goal is None else f"{sign} {row.goal:g}"
        cells = [row.name.ljust(widths[0]), _short(row.value), row.unit, _short(row.baseline), goal]
        met = {None: "", True: "  met", False: "  MISSED"}[row.met]
        print("  ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True)) + met)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(as_object(question, rows), indent=2) + "\n")


def as_object(question: str, rows: Sequence[Row]) -> dict[str, Any]:
    """What ``--json`` writes."""
    return {
        "question": question,
        "command": " ".join(["python", *sys.argv]),
        "commit": _commit(),
        "machine": machine(),
        "rows": [
            {
                "name": row.name,
                "value": row.value,
                "unit": row.unit,
                "baseline": row.baseline,
                "goal": row.goal,
                "met": row.met,
            }
            for row in rows
        ],
    }


def machine() -> dict[str, Any]:
    """Where it was measured."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _commit() -> str:
    """The commit, marked where anything but earlier answers differs from it."""
    written = [f":(exclude)benchmarks/{name}" for name in ("results", "README.md")]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    return (_git("describe", "--always") or "unknown") + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    found = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"
