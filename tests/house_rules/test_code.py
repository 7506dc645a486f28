"""What the style guide asks of the package's code and no linter checks."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "astra_stream"
MODULES = sorted(PACKAGE.rglob("*.py"))
PACKAGES = sorted({module.parent for module in MODULES})
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
CATCH_ALL = {"processing/pipeline.py", "rollout/episode.py"}
VAGUE = {"util", "utils", "helper", "helpers", "common", "manager", "handler", "base", "misc"}
BANNED = {
    "action_mask": "loss_mask",
    "inference_logprobs": "behavior_logprobs",
    "model_version": "policy_version",
    "num_generations": "group_size",
    "old_log_probs": "behavior_logprobs or proximal_logprobs",
    "old_logprobs": "behavior_logprobs or proximal_logprobs",
    "ref_logprobs": "reference_logprobs",
    "response_mask": "loss_mask",
    "rollout_logprobs": "behavior_logprobs",
    "weight_version": "policy_version",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def functions(module: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, Function):
            yield node


def unannotated(function: Function) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [extra for extra in (arguments.vararg, arguments.kwarg) if extra]
    bare = [a.arg for a in named if a.annotation is None and a.arg not in {"self", "cls"}]
    return bare + ([] if function.returns else ["return"])


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_module_fits_in_one_reading(module: Path) -> None:
    lines = len(module.read_text().splitlines())
    assert lines <= 400, f"{name_of(module)} has {lines} lines"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_function_fits_on_one_screen(module: Path) -> None:
    for function in functions(module):
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= 60, f"{name_of(module)}:{function.lineno} {function.name}: {lines} lines"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_every_parameter_and_result_is_annotated(module: Path) -> None:
    for function in functions(module):
        bare = unannotated(function)
        assert not bare, f"{name_of(module)}:{function.lineno} {function.name}: {bare}"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_only_users_code_is_caught_whole(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ExceptHandler) and name_of(module) not in CATCH_ALL:
            caught = ast.unparse(node.type) if node.type else "Exception"
            assert not re.search(r"\bException\b", caught), f"{name_of(module)}:{node.lineno}"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_names_say_what_a_thing_is(module: Path) -> None:
    stem = module.parent.name if module.stem == "__init__" else module.stem
    assert not VAGUE & set(stem.split("_")), f"{name_of(module)}: name the module by its subject"
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ClassDef):
            words = {word.lower() for word in re.findall(r"[A-Z][a-z]*", node.name)}
            assert not VAGUE & words, f"{name_of(module)}:{node.lineno} class {node.name}"
        if isinstance(node, ast.ClassDef | Function):
            assert not re.search(r"_v\d$", node.name), f"{name_of(module)}: {node.name}"
            # Below the commands, where `astra new run` is one, new_ marks what replaces an old_.
            is_variant = node.name.startswith("new_") and module.parent.name != "cli"
            assert not is_variant, f"{name_of(module)}: {node.name}"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_one_word_is_used_for_one_thing(module: Path) -> None:
    for word in re.findall(r"\b\w+\b", module.read_text()):
        assert word not in BANNED, f"{name_of(module)}: {word} is called {BANNED[word]} here"


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_every_package_says_what_lives_in_it(package: Path) -> None:
    start = package / "__init__.py"
    assert start.exists(), f"{name_of(package)} needs an __init__.py"
    assert ast.get_docstring(ast.parse(start.read_text())), f"{name_of(package)} needs a docstring"


def test_help_is_instant() -> None:
    code = f"import sys, astra_stream.cli; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
