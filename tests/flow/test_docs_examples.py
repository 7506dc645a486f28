"""The examples of docs/extend do what their pages say, bound as a run file would bind them."""

import asyncio
import importlib
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from astra_stream.algorithms.losses import Denominators, LossInputs
from astra_stream.connectors.prompt_sources import make_prompts
from astra_stream.plugins import bind
from astra_stream.records import ChatMessage
from astra_stream.testing.builders import make_group, make_prompt

EXTEND = Path(__file__).resolve().parents[2] / "docs" / "extend"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r'"""(\w+)\.py"""\n')
MAX_LINES = 40
SCRATCH = tempfile.TemporaryDirectory(prefix="astra-docs-")
DIRECTORY = Path(SCRATCH.name)


def blocks(language: str) -> Iterator[str]:
    for page in sorted(EXTEND.glob("*.md")):
        yield from (code for name, code in FENCE.findall(page.read_text()) if name == language)


def examples() -> dict[str, str]:
    """Code by the name of the file that its first line gives it."""
    found = {}
    for code in blocks("python"):
        name = FILE_NAME.match(code)
        assert name is not None, f"an example must begin with its file's name: got {code[:40]!r}"
        found[name[1]] = code
    return found


def plugin_tables() -> dict[str, dict[str, Any]]:
    """Parameters of every plugin that the pages' TOML names, by what it says in ``use``."""
    found = {}

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if "use" in value:
                found[value["use"]] = {k: v for k, v in value.items() if k != "use"}
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    for code in blocks("toml"):
        look(tomllib.loads(code))
    return found


EXAMPLES = examples()
TABLES = plugin_tables()
for module_name, text in EXAMPLES.items():
    (DIRECTORY / f"{module_name}.py").write_text(text)


def example(name: str) -> ModuleType:
    if str(DIRECTORY) not in sys.path:
        sys.path.insert(0, str(DIRECTORY))
    return importlib.import_module(name)


def bound(use: str, kind: str, **left_out: object) -> Any:
    """The callable that a page's TOML names, with the parameters that stand beside it."""
    parameters = {k: v for k, v in TABLES[use].items() if k not in left_out}
    supplied = ("seed", "num_threads")
    return bind(
        use, parameters, kind=kind, where="run.toml", supplied=supplied, directory=DIRECTORY
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name: str) -> None:
    assert len(EXAMPLES[name].splitlines()) <= MAX_LINES + 2  # its name and an empty line


def test_a_group_processor_without_memory_looks_at_one_group() -> None:
    drop_hopeless = bound("my_stages:drop_hopeless_groups", "stage")
    assert drop_hopeless.keywords == {"least": 0.1}
    assert list(drop_hopeless(make_group(0, 0.1))) == []
    assert len(list(drop_hopeless(make_group(0, 1)))) == 1


def test_a_group_processor_with_memory_learns_what_is_solved() -> None:
    drop_solved = bound("my_stages:DropSolvedPrompts", "stage")()
    state, kept = drop_solved.step(drop_solved.State(), make_group(1, 1))
    assert (state.success_rate, len(kept)) == (0.5, 1)
    state, kept = drop_solved.step(state, make_group(1, 1))
    assert (state.success_rate, kept) == (0.75, [])


def test_a_reward_function_gives_named_parts() -> None:
    environment = bound("verifiable", "environment")(make_prompt(answer="2"))
    step = asyncio.run(environment.step(ChatMessage(role="assistant", content="2")))
    assert (step.reward, step.reward_parts) == (1.1, {"right": 1.0, "brief": 0.1})
    step = asyncio.run(environment.step(ChatMessage(role="assistant", content="3" * 101)))
    assert step.reward == 0.0


def test_an_environment_plays_several_turns() -> None:
    environment = bound("my_environment:GuessTheNumber", "environment")(make_prompt(answer="7"))

    async def play(*replies: str) -> list[Any]:
        assert len(await environment.start()) == 1
        steps = [
            await environment.step(ChatMessage(role="assistant", content=reply))
            for reply in replies
        ]
        await environment.close()
        return steps

    higher, what, right = asyncio.run(play("3", "nine", "7"))
    assert [m.content for m in (*higher.messages, *what.messages)] == ["Higher.", "A number."]
    assert (higher.done, right.done, right.reward) == (False, True, 1.0)


def test_a_prompt_source_gives_rows() -> None:
    rows = list(bound("my_source:sums", "prompt_source", held_out=0.1)())
    assert len(rows) == 31**2
    assert rows[32].answer == "2"
    assert json.loads(rows[32].fields["terms"]) == [1, 1]
    prompts = make_prompts(rows, dataset="sums", held_out=0.1)
    assert sum(prompt.split == "held_out" for prompt in prompts) == 96


def test_a_selector_gives_every_prompt_once() -> None:
    select = bound("my_order:in_order", "prompt_selector")
    assert select(4, 0, seed=3).tolist() == [0, 1, 2, 3]
    assert select(4, 1, seed=3).tolist() == [3, 2, 1, 0]


def test_an_advantage_scores_every_valid_sample() -> None:
    advantage = bound("my_advantage:best_against_rest", "advantage")
    assert advantage.func.min_group_size == 2
    assert advantage([make_group(1, 0), make_group(3, 3)]).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_a_loss_trains_what_is_in_the_mask() -> None:
    reinforce = bound("my_loss:reinforce", "loss")
    current = torch.tensor([[-9.0, -1.0, -1.0]], requires_grad=True)
    ids = torch.zeros(1, 3, dtype=torch.int64)
    output = reinforce(
        LossInputs(
            current_logprobs=current,
            behavior_logprobs=torch.tensor([[0.0, -1.0, -3.0]]),
            advantages=torch.tensor([[1.0, 2.0, 2.0]]),
            loss_mask=torch.tensor([[False, True, True]]),
            weights=torch.ones(1, 3),
            sample_ids=ids,
            sequence_ids=ids,
            sequence_tokens=torch.full((1, 3), 2.0),
            denominators=Denominators(tokens=2, sequences=1),
        )
    )
    output.loss.backward()
    assert current.grad is not None
    assert current.grad.tolist() == [[0.0, -1.0, -1.5]]
    assert float(output.metrics["weight_mean"]) == 2.5


def test_an_engine_can_be_named_in_a_run_file() -> None:
    engine = bound("my_engine:UniformEngine", "engine")(DIRECTORY, num_threads=1)
    assert engine.version is None


# The contract suites of the pages, collected from here.
TestUniformEngine = example("test_my_engine").TestUniformEngine
TestDictStore = example("test_my_store").TestDictStore
