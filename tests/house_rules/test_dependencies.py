"""Every dependency has a lower bound, is locked, and is here in a version that satisfies it."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [
    *PROJECT["dependencies"],
    *(requirement for extra in EXTRAS.values() for requirement in extra),
]


def locked(name: str) -> set[str]:
    return set(
        re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / name).read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize("line", REQUIREMENTS)
def test_a_dependency_has_a_lower_bound(line: str) -> None:
    operators = {part.operator for part in Requirement(line).specifier}
    assert operators & {">=", "==", "~="}, f"{line} would accept a version of any age"


@pytest.mark.parametrize("line", REQUIREMENTS)
def test_the_environment_has_what_is_declared(line: str) -> None:
    requirement = Requirement(line)
    version = importlib.metadata.version(requirement.name)
    assert requirement.specifier.contains(version), f"{line}: got {version}"


@pytest.mark.parametrize("line", REQUIREMENTS)
def test_the_test_lock_has_every_dependency(line: str) -> None:
    assert Requirement(line).name in locked("test.txt"), "run `make lock`"


def test_the_demo_lock_is_the_test_lock_less_the_tools() -> None:
    demo = (ROOT / "requirements" / "demo.txt").read_text()
    test = (ROOT / "requirements" / "test.txt").read_text()
    pins = re.compile(r"^[\w.-]+==[^\s\\]+", re.MULTILINE)
    assert set(pins.findall(demo)) <= set(pins.findall(test))
    assert locked("demo.txt").isdisjoint({Requirement(line).name for line in EXTRAS["dev"]})
