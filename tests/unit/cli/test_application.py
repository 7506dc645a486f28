import json
import subprocess
import sys
from pathlib import Path

import pytest

from astra_stream import cli
from astra_stream.cli import application, run_command
from astra_stream.cli.application import make_application
from astra_stream.errors import (
    AstraStreamError,
    ConfigError,
    FencedError,
    TransientError,
    WeightsError,
)

HEAVY = [
    "boto3",
    "confluent_kafka",
    "fastavro",
    "matplotlib",
    "numpy",
    "pyarrow",
    "pydantic",
    "reasoning_gym",
    "torch",
    "transformers",
]
PACKAGE = Path(cli.__file__).parent
COMMANDS = (*application.RUN, *application.SERVICES, *application.PARTS)


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, json; from astra_stream.cli import run_command; code = run_command(['--help'])"
        f"; print(json.dumps([code, [m for m in {HEAVY} if m in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]
    for command in COMMANDS:
        assert f" {command.name} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_where_it_is_said_to_be(command: application.Command) -> None:
    module, _, name = command.where.partition(":")
    text = (PACKAGE / f"{module}.py").read_text()
    assert f"def {name}(" in text or f"\n{name} = App(" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a key must be right: got wrong"), 2),
        (TransientError("broker must answer: got nothing"), 75),
        (FencedError("another one took over"), 75),
        (WeightsError("hash differs"), 1),
        (AstraStreamError("something"), 1),
    ],
)
def test_an_error_of_ours_is_one_line_and_a_code(
    error: AstraStreamError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_raising(error, monkeypatch) == code
    assert capsys.readouterr().err == f"astra: {error}\n"


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_raising(KeyboardInterrupt(), monkeypatch) == 130


def test_a_bug_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run_raising(ZeroDivisionError(), monkeypatch)


def test_every_problem_has_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_raising(ConfigError("first\nsecond"), monkeypatch)
    assert capsys.readouterr().err == "astra: first\nastra: second\n"


@pytest.mark.parametrize(
    "arguments", [["chekc", "x.toml"], ["check", "--nope", "x.toml"], ["down"], ["topics", "aply"]]
)
def test_what_is_no_command_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 2
    assert capsys.readouterr().err.startswith("astra: ")


def run_raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def raises() -> None:
        raise error

    def make() -> application.App:
        app = make_application()
        app.command(raises, name="raises")
        return app

    monkeypatch.setattr(application, "make_application", make)
    return run_command(["raises"])
