"""Astra Stream: reinforcement learning for language models in which the log is the system.

These are the names that users' code needs. Importing the package runs nothing and loads no
dependency: a name is fetched from its module when it is first used. Start with ``records``.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astra_stream.algorithms.interface import processor
    from astra_stream.engines.interface import Completion, Engine, WeightUpdate
    from astra_stream.environments.interface import Environment, Step
    from astra_stream.errors import RecordError
    from astra_stream.records import (
        ChatMessage,
        Evaluation,
        Group,
        Outcome,
        PolicyVersion,
        Prompt,
        Sample,
        Sampling,
        Trajectory,
    )

__all__ = [
    "ChatMessage",
    "Completion",
    "Engine",
    "Environment",
    "Evaluation",
    "Group",
    "Outcome",
    "PolicyVersion",
    "Prompt",
    "RecordError",
    "Sample",
    "Sampling",
    "Step",
    "Trajectory",
    "WeightUpdate",
    "processor",
]

_HOMES = {
    "algorithms.interface": ("processor",),
    "engines.interface": ("Completion", "Engine", "WeightUpdate"),
    "environments.interface": ("Environment", "Step"),
    "errors": ("RecordError",),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"astra_stream has no {name!r}: it has {__all__}.")
    home = next((module for module, names in _HOMES.items() if name in names), "records")
    return getattr(importlib.import_module(f"astra_stream.{home}"), name)
