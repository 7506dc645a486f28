"""Arguments that several commands have."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

RunFile = Annotated[Path, Parameter(help="The run file.")]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        help="Override a key of the run file: a.b.c=value. May be repeated.",
        negative=(),
        consume_multiple=False,
    ),
]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON instead.", negative=())]
StackDirectory = Annotated[
    Path | None,
    Parameter(
        name="--stack",
        help="Directory of the embedded broker and store, for a run file that names none; "
        "absent is ASTRA_STACK.",
    ),
]
