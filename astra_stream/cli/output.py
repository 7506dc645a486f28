"""Tables for people and JSON for programs, from the same rows."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def print_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Print names and values as a table of two columns."""
    rows = [{"": name, title: value} for name, value in facts.items()]
    print_rows(title, rows, show_title=False)


def print_rows(title: str, rows: Sequence[Mapping[str, Any]], *, show_title: bool = True) -> None:
    """Print rows, whose keys are the columns, as a table; without rows only the title."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=title if show_title else None, title_justify="left")
    for name in rows[0] if rows else ():
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table if rows else title)
