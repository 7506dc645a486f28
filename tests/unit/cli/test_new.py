from pathlib import Path

import pytest

from astra_stream.cli import run_command
from astra_stream.cli.binding import RunPlugins
from astra_stream.cli.new import write_run
from astra_stream.config import load_run


def test_a_new_run_is_valid_but_for_its_model(tmp_path: Path) -> None:
    directory = tmp_path / "My Run 1"
    assert run_command(["new", "run", str(directory)]) == 0
    config = load_run(directory / "run.toml")
    assert config.run == "my-run-1"
    assert config.policy.model == directory / "model"
    plugins = RunPlugins(config)
    prompts = plugins.prompts()
    assert (len(prompts), sum(p.split == "held_out" for p in prompts)) == (64, 8)
    reward = plugins.environment().keywords["reward"]
    assert reward(f"It is {prompts[0].answer}", prompts[0])["right"] == 1.0
    assert reward("It is 1000", prompts[0])["right"] == 0.0
    assert reward("a", prompts[0]) != reward("ab", prompts[0])


def test_a_new_run_names_the_model_by_its_absolute_path(tmp_path: Path) -> None:
    model = tmp_path / 'a "model"'
    write_run(tmp_path / "run", model)
    assert load_run(tmp_path / "run" / "run.toml").policy.model == model.resolve()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reward.py").write_text("mine")
    assert run_command(["new", "run", str(tmp_path)]) == 2
    assert "must have no reward.py: got one" in capsys.readouterr().err
    assert (tmp_path / "reward.py").read_text() == "mine"
    assert not (tmp_path / "run.toml").exists()


def test_a_model_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["new", "run", str(tmp_path / "a"), "--model", str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err.startswith("astra: --model must be a directory with a Hugging")
    assert not (tmp_path / "a").exists()
