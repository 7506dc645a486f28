"""The reasoning-gym package, imported: its tasks make prompts in one place and judge in another."""

import importlib
import sys
import types
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from astra_stream.errors import ConfigError

SOLVER = "pycosat"


def import_reasoning_gym() -> Any:
    """Import reasoning-gym, quietly and also where its solver is not installed.

    Raises:
        ImportError: The package is not installed.
    """
    # It imports the solver at once, but a single task (zebra_puzzles) calls it, and the solver is a
    # C source distribution, which does not install where there is no compiler.
    if SOLVER not in sys.modules and find_spec(SOLVER) is None:
        sys.modules[SOLVER] = _without_solver()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return importlib.import_module("reasoning_gym")


def _without_solver() -> types.ModuleType:
    def itersolve(*_arguments: Any) -> Iterator[Any]:
        raise ConfigError(
            f"task must not need a solver: got one that calls {SOLVER}, which is not installed. "
            f"Choose another task, or install {SOLVER}, for which a C compiler is needed."
        )

    module = types.ModuleType(SOLVER)
    vars(module)["itersolve"] = itersolve
    return module
