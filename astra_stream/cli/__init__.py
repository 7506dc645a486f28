"""The astra command, one file per group of commands; heavy imports stay inside each command.

Start with ``application.py``. ``main`` turns errors into exit codes and one line on stderr.
"""

import sys
from collections.abc import Sequence

from astra_stream.errors import AstraStreamError

USER_MISTAKE = 2
INTERRUPTED = 130

__all__ = ["main", "run_command"]


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns:
        0; 2 for a user's mistake; 75 for "try again"; 130 after Ctrl-C. An error that nobody
        foresaw is raised: the interpreter prints it and exits with 1.
    """
    from cyclopts import CycloptsError

    from astra_stream.cli.application import make_application

    try:
        result = make_application()(list(arguments))
    except CycloptsError as error:
        return _say(
            f"{error} Try: astra {' '.join(error.command_chain or ())} --help", USER_MISTAKE
        )
    except AstraStreamError as error:
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _say(text: str, code: int) -> int:
    """One line where there is one thing to say."""
    sys.stdout.flush()
    for line in text.strip().splitlines():
        print(f"astra: {line}", file=sys.stderr)
    return code
