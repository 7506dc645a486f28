"""The run file: its models, how it is read and overridden, and what it says once resolved.

May import what lies below the command; only ``cli`` imports it. Start with ``tables.py``.
"""

from astra_stream.config.loading import load_run, resolved
from astra_stream.config.tables import (
    EvaluateConfig,
    PluginConfig,
    PolicyConfig,
    PromptSourceConfig,
    RolloutConfig,
    RunConfig,
    seconds,
)

__all__ = [
    "EvaluateConfig",
    "PluginConfig",
    "PolicyConfig",
    "PromptSourceConfig",
    "RolloutConfig",
    "RunConfig",
    "load_run",
    "resolved",
    "seconds",
]
