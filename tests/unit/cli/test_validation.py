"""A user's mistakes, each with the message that it gets before anything starts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from astra_stream.cli import run_command
from astra_stream.cli.check import former_summary
from astra_stream.cli.model_facts import read_model_facts
from astra_stream.cli.validation import check_against_prompts, length_problems, validate_run
from astra_stream.config import RunConfig, load_run
from astra_stream.errors import ConfigError

pytestmark = pytest.mark.timeout(120)  # the first test that binds a loss imports torch

RUN = """
run = "sums"
steps = 10
[prompts]
source = { use = "jsonl", path = "prompts.jsonl", held_out = 2 }
[rollout]
environment = { use = "verifiable" }
sampling = { max_new_tokens = 8 }
group_size = 4
[policies.main]
model = "model"
batch = { groups = 4 }
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(10)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def write_model(directory: Path, *, context_tokens: int = 64) -> None:
    """A model directory as far as it is read without a model library."""
    directory.mkdir()
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]},
        "b": {"dtype": "F32", "shape": [7], "data_offsets": [30, 58]},
    }
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    (directory / "config.json").write_text(json.dumps({"max_position_embeddings": context_tokens}))
    (directory / "tokenizer.json").write_text("{}")


def mistakes(run_file: Path, *overrides: str) -> list[str]:
    """What is wrong, the missing model aside."""
    with pytest.raises(ConfigError) as caught:
        validate_run(load_run(run_file, overrides), file=run_file.name)
    return [line for line in str(caught.value).splitlines() if "main.model must" not in line]


def test_a_missing_model_directory_is_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_run(load_run(run_file), file="run.toml")
    assert str(caught.value) == (
        "run.toml: policies.main.model must be a directory with a Hugging Face model: got "
        f"'{run_file.parent}/model', which does not exist. "
        "Correct the path, or save a model there."
    )


def test_a_model_directory_lists_what_it_lacks(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model must hold tokenizer\.json, \*\.safetensors: got"):
        read_model_facts(tmp_path / "model", key="model")


def test_a_model_is_measured_by_its_headers(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    facts = read_model_facts(tmp_path / "model", key="model")
    assert (facts.num_parameters, facts.context_tokens) == (22, 64)


def test_weights_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\xff" * 12)
    with pytest.raises(ConfigError, match="must be safetensors: got a cut file"):
        read_model_facts(tmp_path / "model", key="model")


def test_an_unknown_environment_is_refused(run_file: Path) -> None:
    assert mistakes(run_file, "rollout.environment.use=verifable") == [
        "run.toml: rollout.environment.use must be one of ['reasoning_gym', 'verifiable'] "
        "or module:name: got 'verifable'. Did you mean 'verifiable'?"
    ]


def test_a_group_of_one_is_refused_with_a_group_relative_advantage(run_file: Path) -> None:
    assert mistakes(run_file, "rollout.group_size=1") == [
        "run.toml: rollout.group_size must be at least 2 with the advantage 'group_relative': "
        "got 1. It compares the samples of a prompt with one another; use 8."
    ]


def test_an_empty_prompt_file_is_refused(run_file: Path) -> None:
    (run_file.parent / "prompts.jsonl").write_text("")
    assert mistakes(run_file) == [
        "prompt file 'prompts' must have at least one prompt: got none. Add prompts to it."
    ]


def test_a_batch_that_can_never_fill_is_refused(run_file: Path) -> None:
    assert mistakes(run_file, "prompts.epochs=2", "policies.main.batch.groups=17") == [
        "run.toml: policies.main.batch.groups must be at most 16, the groups of 8 prompts in "
        "2 epochs: got 17. Such a batch never fills; lower it, or raise prompts.epochs."
    ]


def test_an_evaluation_without_held_out_prompts_is_refused(run_file: Path) -> None:
    assert mistakes(run_file, "prompts.source.held_out=0", "evaluate.every=5") == [
        "run.toml: evaluate must have held-out prompts: got none. "
        "Set prompts.source.held_out, or remove [evaluate]."
    ]


def test_a_repeatable_run_has_one_worker(run_file: Path) -> None:
    assert mistakes(run_file, "repeatable=true", "rollout.workers=2") == [
        "run.toml: rollout.workers must be 1 in a repeatable run: got 2. "
        "Remove one of the two keys."
    ]


def test_mistakes_of_different_kinds_are_listed_together(run_file: Path) -> None:
    (run_file.parent / "prompts.jsonl").write_text("{\n")
    found = mistakes(run_file, "rollout.group_size=1", 'policies.main.pipeline=[{use="nope"}]')
    assert [line.partition(" must")[0] for line in found] == [
        "run.toml: policies.main.pipeline[0].use",
        "run.toml: rollout.group_size",
        "prompts.jsonl: line 1",
    ]


def config_of(run_file: Path, *overrides: str) -> RunConfig:
    return load_run(run_file, overrides)


def test_a_prompt_longer_than_the_context_is_refused(run_file: Path) -> None:
    config = config_of(run_file)
    lengths = {"sums/0/a": 50, "sums/1/b": 57, "sums/2/c": 60}
    assert length_problems(config, lengths, 64, file="run.toml") == [
        "prompt 'sums/2/c' must fit the model's context of 64 tokens with 8 new ones: "
        "got 60 + 8 (2 such prompts). "
        "Shorten it, or lower rollout.sampling.max_new_tokens."
    ]
    assert length_problems(config, {"sums/0/a": 56}, 64, file="run.toml") == []


def test_a_row_that_a_sample_cannot_fit_is_refused(run_file: Path) -> None:
    config = config_of(run_file, "policies.main.batch.row_tokens=16")
    assert length_problems(config, {"sums/0/a": 9}, 64, file="run.toml") == [
        "run.toml: policies.main.batch.row_tokens must be at least 17, "
        "the longest prompt and its reply: got 16. Raise it."
    ]


def test_prompts_that_repeat_fill_any_batch(run_file: Path) -> None:
    config = config_of(run_file, "policies.main.batch.groups=1000")
    assert check_against_prompts(config, 3, 0) == []


def test_the_newest_summary_of_the_same_run_is_found(run_file: Path) -> None:
    for age_s, name, summary in (
        (30, "sums-1", {"steps": 10, "wall_s": 100.0}),
        (20, "sums-2", {"steps": 10, "wall_s": 50.0}),
        (10, "sums-3", {"steps": 0, "wall_s": 5.0}),
        (0, "other-4", {"steps": 1, "wall_s": 1.0}),
    ):
        path = run_file.parent / "runs" / name / "summary.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(summary))
        os.utime(path, (1e9 - age_s, 1e9 - age_s))
    found = former_summary(config_of(run_file), [run_file.parent / "runs"])
    assert found == (run_file.parent.resolve() / "runs" / "sums-2" / "summary.json", 5.0)
    assert former_summary(config_of(run_file), [run_file.parent / "none"]) is None


def save_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {w: n for n, w in enumerate(["<eos>", "<unk>", "+", "=", *map(str, range(12))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"})
    )
    (directory / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("last", "steps"), [("train", 6), ("drop", 5)])
def test_check_says_what_would_happen(
    run_file: Path, capsys: pytest.CaptureFixture[str], last: str, steps: int
) -> None:
    write_model(run_file.parent / "model")
    save_tokenizer(run_file.parent / "model")
    overrides = ["--set", "prompts.epochs=2", "--set", "policies.main.batch.groups=3"]
    overrides += ["--set", f"policies.main.batch.last={last}"]
    assert run_command(["check", str(run_file), "--json", *overrides]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (facts["num_train"], facts["num_held_out"]) == (8, 2)
    assert facts["longest_prompt_tokens"] == 4
    assert (facts["groups_per_step"], facts["samples_per_step"]) == (3, 12)
    assert (facts["steps"], facts["steps_asked"]) == (steps, 10)
    assert facts["model"]["num_parameters"] == 22
    assert facts["estimated_s"] is None
    assert "sums.scheduler.state.changelog" in facts["topics"]
    assert run_command(["check", str(run_file), *overrides]) == 0
    assert f"{steps} at most: prompts end before the 10 asked for" in capsys.readouterr().out
