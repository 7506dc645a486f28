"""The plugins of a run, bound to their parameters when a service asks for one."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from astra_stream.errors import ConfigError

if TYPE_CHECKING:
    from astra_stream.config import PluginConfig, RunConfig
    from astra_stream.records import Prompt

SUPPLIED = {
    "engine": ("num_threads", "initial_version", "terminators"),
    "prompt_selector": ("seed",),
}
"""Keyword-only parameters that a service gives, by kind of plugin."""


@dataclass(frozen=True, slots=True)
class RunPlugins:
    """What a run file's ``use`` keys name; each is imported when it is asked for."""

    config: "RunConfig"
    file: str = "run.toml"
    """Name of the run file, for messages."""

    def engine(self) -> functools.partial[Any]:
        """Takes the model directory."""
        return self._bind(self.config.rollout.engine, "engine", "rollout.engine")

    def environment(self) -> functools.partial[Any]:
        """Takes a prompt."""
        return self._bind(self.config.rollout.environment, "environment", "rollout.environment")

    def selector(self) -> functools.partial[Any]:
        """Chooses the next prompts."""
        return self._bind(self.config.prompts.select, "prompt_selector", "prompts.select")

    def stages(self) -> tuple[functools.partial[Any], ...]:
        """The pipeline's processors, in order."""
        key = f"policies.{self.config.policy_name}.pipeline"
        return tuple(
            self._bind(table, "stage", f"{key}[{index}]")
            for index, table in enumerate(self.config.policy.pipeline)
        )

    def advantage(self) -> functools.partial[Any]:
        """Takes groups."""
        key = f"policies.{self.config.policy_name}.advantage"
        return self._bind(self.config.policy.advantage, "advantage", key)

    def loss(self) -> functools.partial[Any]:
        """Takes loss inputs; imports torch."""
        key = f"policies.{self.config.policy_name}.loss"
        return self._bind(self.config.policy.loss, "loss", key)

    def prompts(self) -> list["Prompt"]:
        """Read the source and split it."""
        from astra_stream.connectors.prompt_sources import dataset_name, make_prompts

        source = self.config.prompts.source
        rows = self._bind(source, "prompt_source", "prompts.source")
        name = dataset_name(source.parameters)
        return make_prompts(rows(), dataset=name, held_out=source.held_out)

    def problems(self) -> list[str]:
        """What is wrong with any of them but the prompts; empty when nothing is."""
        found: list[str] = []
        asked: tuple[Callable[[], object], ...] = (
            self.engine,
            self.environment,
            self.selector,
            self.stages,
            self.advantage,
            self.loss,
        )
        for ask in asked:
            try:
                ask()
            except ConfigError as error:
                found += str(error).splitlines()
        return found

    def _bind(self, table: "PluginConfig", kind: str, key: str) -> functools.partial[Any]:
        from astra_stream.plugins import bind

        return bind(
            table.use,
            table.parameters,
            kind=kind,
            where=f"{self.file}: {key}",
            supplied=SUPPLIED.get(kind, ()),
            directory=self.config.directory,
        )
