"""What can be known of a run before it starts: every mistake at once, and what it will take."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from astra_stream.cli.binding import RunPlugins
from astra_stream.cli.model_facts import ModelFacts, read_model_facts
from astra_stream.errors import ConfigError

if TYPE_CHECKING:
    from astra_stream.config import RunConfig
    from astra_stream.records import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a valid run will do."""

    num_train: int
    """Prompts to train on."""
    num_held_out: int
    """Prompts to evaluate on."""
    longest_prompt_tokens: int
    """Tokens of the longest prompt, chat template included."""
    groups_per_step: int
    samples_per_step: int
    steps: int
    """Steps at most: fewer than asked for where the prompts end first."""
    steps_asked: int
    model: ModelFacts


def validate_run(config: "RunConfig", *, file: str) -> tuple[Expectation, "list[Prompt]"]:
    """Check all that can be checked without a broker.

    Args:
        config: The run.
        file: Name of its file, for messages.

    Returns:
        What to expect, and the prompts.

    Raises:
        ConfigError: Lists everything that is wrong.
    """
    plugins = RunPlugins(config, file)
    problems = plugins.problems()
    problems += group_size_problems(config, plugins, file=file)
    if config.repeatable and config.rollout.workers != 1:
        problems.append(
            f"{file}: rollout.workers must be 1 in a repeatable run: "
            f"got {config.rollout.workers}. Remove one of the two keys."
        )
    prompts: list[Prompt] = []
    model: ModelFacts | None = None
    try:
        prompts = plugins.prompts()
        problems += prompt_problems(config, prompts, file=file)
    except ConfigError as error:
        problems += str(error).splitlines()
    key = f"policies.{config.policy_name}.model"
    try:
        model = read_model_facts(config.policy.model, key=f"{file}: {key}")
    except ConfigError as error:
        problems += str(error).splitlines()
    longest = 0
    if model is not None and prompts:
        lengths = prompt_lengths(config, prompts)
        longest = max(lengths.values())
        problems += length_problems(config, lengths, model.context_tokens, file=file)
    if problems or model is None:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return _expectation(config, prompts, longest, model), prompts


def group_size_problems(config: "RunConfig", plugins: RunPlugins, *, file: str) -> list[str]:
    """Refuse a group in which the advantage can tell nothing apart."""
    try:
        advantage = plugins.advantage()
    except ConfigError:
        return []
    smallest = int(getattr(advantage.func, "min_group_size", 1))
    if config.rollout.group_size >= smallest:
        return []
    return [
        f"{file}: rollout.group_size must be at least {smallest} with the advantage "
        f"{config.policy.advantage.use!r}: got {config.rollout.group_size}. "
        "It compares the samples of a prompt with one another; use 8."
    ]


def prompt_problems(config: "RunConfig", prompts: "Sequence[Prompt]", *, file: str) -> list[str]:
    """Refuse a batch that can never fill and an evaluation without prompts."""
    num_train = sum(prompt.split == "train" for prompt in prompts)
    found = check_against_prompts(config, num_train, len(prompts) - num_train)
    return [f"{file}: {problem}" for problem in found]


def check_against_prompts(config: "RunConfig", num_train: int, num_held_out: int) -> list[str]:
    """What the number of prompts rules out; empty when nothing is."""
    problems = []
    epochs, groups = config.prompts.epochs, config.policy.batch.groups
    if epochs is not None and groups > epochs * num_train:
        problems.append(
            f"policies.{config.policy_name}.batch.groups must be at most {epochs * num_train}, "
            f"the groups of {num_train} prompts in {epochs} epochs: got {groups}. "
            "Such a batch never fills; lower it, or raise prompts.epochs."
        )
    if config.evaluate is not None and num_held_out == 0:
        problems.append(
            "evaluate must have held-out prompts: got none. "
            "Set prompts.source.held_out, or remove [evaluate]."
        )
    return problems


def prompt_lengths(config: "RunConfig", prompts: "Sequence[Prompt]") -> dict[str, int]:
    """Tokens of each prompt as the model reads it, by prompt id.

    Raises:
        ConfigError: The model directory has no tokenizer or no chat template.
    """
    from astra_stream.engines.chat import ChatTokenizer

    chat = ChatTokenizer(config.policy.model)
    return {prompt.prompt_id: len(chat.opening(prompt.messages)) for prompt in prompts}


def length_problems(
    config: "RunConfig", lengths: Mapping[str, int], context_tokens: int, *, file: str
) -> list[str]:
    """Refuse prompts that leave no room for a reply in the context or in a packed row."""
    longest = max(lengths, key=lambda prompt_id: lengths[prompt_id])
    reply = config.rollout.sampling.max_new_tokens
    needed = lengths[longest] + reply
    problems = []
    if context_tokens and needed > context_tokens:
        num_long = sum(length + reply > context_tokens for length in lengths.values())
        problems.append(
            f"prompt {longest!r} must fit the model's context of {context_tokens} tokens with "
            f"{reply} new ones: got {lengths[longest]} + {reply} ({num_long} such prompts). "
            "Shorten it, or lower rollout.sampling.max_new_tokens."
        )
    if needed > config.policy.batch.row_tokens:
        problems.append(
            f"{file}: policies.{config.policy_name}.batch.row_tokens must be at least {needed}, "
            f"the longest prompt and its reply: got {config.policy.batch.row_tokens}. Raise it."
        )
    return problems


def _expectation(
    config: "RunConfig", prompts: "Sequence[Prompt]", longest: int, model: ModelFacts
) -> Expectation:
    num_train = sum(prompt.split == "train" for prompt in prompts)
    batch, epochs = config.policy.batch, config.prompts.epochs
    steps = config.steps
    if epochs is not None:
        whole = math.ceil if batch.last == "train" else math.floor
        steps = min(steps, whole(num_train * epochs / batch.groups))
    return Expectation(
        num_train=num_train,
        num_held_out=len(prompts) - num_train,
        longest_prompt_tokens=longest,
        groups_per_step=batch.groups,
        samples_per_step=batch.groups * config.rollout.group_size,
        steps=steps,
        steps_asked=config.steps,
        model=model,
    )
