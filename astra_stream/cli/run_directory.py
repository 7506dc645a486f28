"""A run's directory: ``run.json``, ``stack.json``, ``logs/``, ``summary.json`` and ``run.png``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from astra_stream.errors import ConfigError

if TYPE_CHECKING:
    from astra_stream.config import RunConfig
    from astra_stream.local.stack import StackInfo

RUN_FILE = "run.json"
"""The resolved run file in a run's directory."""
PICTURE_FILE = "run.png"
"""The picture in a run's directory."""

RunDirectory = Annotated[Path, Parameter(help="Directory of the run, such as runs/NAME-TIME.")]


def run_file_of(where: Path) -> Path:
    """The run file that a path means: itself, or ``run.json`` in a directory.

    Raises:
        ConfigError: It is a directory without one.
    """
    if not where.is_dir():
        return where
    path = where / RUN_FILE
    if not path.exists():
        raise ConfigError(
            f"{where} must be the directory of a run: got one without {RUN_FILE}. "
            "Name one that astra run made, below runs/."
        )
    return path


def running_stack(config: "RunConfig", where: Path, stack: Path | None) -> "StackInfo | None":
    """The embedded stack that a run uses now; None for a run whose file names its broker.

    Args:
        config: The run's file.
        where: The run file, or the run's directory, which is also that of its stack.
        stack: Directory of the stack where it is another one.

    Raises:
        ConfigError: No stack is named, or it does not run.
    """
    from astra_stream.cli.connect import find_stack

    directory = stack or (where if where.is_dir() else None)
    if config.kafka is not None:
        return None
    found = find_stack(directory)
    if found is not None and not found.is_running():
        raise ConfigError(
            f"the run's broker must be running: got {found.bootstrap} stopped. "
            f"Go on with 'astra run --resume DIR', or see what it came to with 'astra report DIR'."
        )
    return found
