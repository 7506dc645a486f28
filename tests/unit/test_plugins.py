import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astra_stream.errors import ConfigError
from astra_stream.plugins import SHORT_NAMES, bind, resolve

WHERE = "run.toml: policies.main.pipeline[0]"
SOURCE = """
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


def keep(group, *, tolerance: float = 0.0):
    yield group


def many(
    group,
    *,
    count: int,
    mode: Literal["a", "b"] = "a",
    names: tuple[str, ...] = (),
    path: Path | None = None,
    reward: Callable[[str], float] | None = None,
    clock: object | None = None,
):
    yield group


@dataclass(frozen=True, kw_only=True)
class Step:
    threshold: float = 0.5


def score(text: str) -> float:
    return 1.0


NOT_CALLABLE = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module beside a run file; it is forgotten after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"users_{tmp_path.name.replace('-', '_')}"

    def write(text: str = SOURCE) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    yield write
    sys.modules.pop(name, None)


def refused(use: str, directory: Path, kind: str = "stage", **parameters: object) -> str:
    with pytest.raises(ConfigError) as caught:
        bind(use, parameters, kind=kind, where=WHERE, directory=directory)
    return str(caught.value)


def test_parameters_are_bound_to_the_callable(module: Callable[[], str], tmp_path: Path) -> None:
    name = module()
    bound = bind(f"{name}:keep", {"tolerance": 1}, kind="stage", where=WHERE, directory=tmp_path)
    assert bound.keywords == {"tolerance": 1.0}
    assert list(bound("group")) == ["group"]


def test_a_class_takes_its_parameters(module: Callable[[], str], tmp_path: Path) -> None:
    use = f"{module()}:Step"
    bound = bind(use, {"threshold": 0.25}, kind="stage", where=WHERE, directory=tmp_path)
    assert bound().threshold == 0.25


def test_a_wrong_value_is_refused_with_the_rule(module: Callable[[], str], tmp_path: Path) -> None:
    name = module()
    assert refused(f"{name}:keep", tmp_path, tolerance="lots") == (
        f"{WHERE} ({name}:keep): tolerance must be a number: got 'lots'. It takes ['tolerance']."
    )


def test_a_misspelt_parameter_is_refused_and_the_near_one_named(
    module: Callable[[], str], tmp_path: Path
) -> None:
    name = module()
    assert refused(f"{name}:keep", tmp_path, tolerence=1.0) == (
        f"{WHERE} ({name}:keep): has no parameter 'tolerence': it takes ['tolerance']. "
        "Did you mean 'tolerance'?"
    )


def test_all_wrong_parameters_are_listed(module: Callable[[], str], tmp_path: Path) -> None:
    found = refused(f"{module()}:many", tmp_path, mode="c", names="x", path=3, clock="now")
    rules = [line.partition("): ")[2].partition(". It takes")[0] for line in found.splitlines()]
    assert rules == [
        "mode must be 'a' or 'b': got 'c'",
        "names must be a list: got 'x'",
        "path must be text: got 3",
        "count must be given: got nothing",
    ]


def test_text_is_no_number(module: Callable[[], str], tmp_path: Path) -> None:
    assert "count must be a whole number: got '3'" in refused(
        f"{module()}:many", tmp_path, count="3"
    )


def test_a_callable_and_a_path_are_found_beside_the_run_file(
    module: Callable[[], str], tmp_path: Path
) -> None:
    name = module()
    parameters = {"count": 1, "reward": f"{name}:score", "path": "data/x", "names": ["a"]}
    bound = bind(f"{name}:many", parameters, kind="stage", where=WHERE, directory=tmp_path)
    assert bound.keywords["reward"]("text") == 1.0
    assert bound.keywords["path"] == tmp_path / "data" / "x"
    assert bound.keywords["names"] == ("a",)


def test_a_callable_that_is_not_there_is_refused(module: Callable[[], str], tmp_path: Path) -> None:
    name = module()
    assert refused(f"{name}:many", tmp_path, count=1, reward=f"{name}:scores") == (
        f"{WHERE} ({name}:many): reward ({name}:scores): {name} must have 'scores': "
        f"got no such name in {tmp_path / name}.py. Did you mean 'score'?"
    )


def test_supplied_parameters_are_not_the_users(module: Callable[[], str], tmp_path: Path) -> None:
    name = module()
    with pytest.raises(ConfigError, match=r"has no parameter 'count': it takes \['mode'"):
        bind(
            f"{name}:many",
            {"count": 1},
            kind="stage",
            where=WHERE,
            supplied=("count",),
            directory=tmp_path,
        )
    bind(f"{name}:many", {}, kind="stage", where=WHERE, supplied=("count",), directory=tmp_path)


def test_an_unknown_short_name_is_refused_and_the_near_one_named(tmp_path: Path) -> None:
    assert refused("verifable", tmp_path, kind="environment") == (
        f"{WHERE}.use must be one of ['reasoning_gym', 'verifiable'] or module:name: "
        "got 'verifable'. Did you mean 'verifiable'?"
    )


def test_a_missing_module_is_refused_with_where_it_was_sought(tmp_path: Path) -> None:
    found = refused("no_such_module:f", tmp_path)
    assert f"module 'no_such_module' must exist: got nothing in {tmp_path}" in found


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("def keep(:\n    pass\n", 1, "SyntaxError: invalid syntax"),
        ("a = 1\nb = 1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("from math import nothing\n", 1, "ImportError: cannot import name 'nothing'"),
    ],
)
def test_a_module_that_fails_to_import_is_named_with_its_line(
    module: Callable[[str], str], tmp_path: Path, text: str, line: int, said: str
) -> None:
    name = module(text)
    found = refused(f"{name}:keep", tmp_path)
    assert f"{tmp_path / name}.py:{line} must import: got {said}" in found


def test_a_module_whose_package_is_missing_names_the_package(
    module: Callable[[str], str], tmp_path: Path
) -> None:
    found = refused(f"{module('import no_such_package')}:keep", tmp_path)
    assert "needs the package 'no_such_package': got none installed" in found


def test_what_cannot_be_called_is_refused(module: Callable[[], str], tmp_path: Path) -> None:
    assert "must be callable: got 3" in refused(f"{module()}:NOT_CALLABLE", tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, names in SHORT_NAMES.items()
        for name in names
        if kind not in ("engine", "loss")
    ],
)
def test_every_light_short_name_is_there(kind: str, name: str) -> None:
    assert callable(resolve(name, kind))


@pytest.mark.parametrize("kind", ["engine", "loss"])
def test_every_heavy_short_name_has_its_module(kind: str) -> None:
    package = Path(__file__).resolve().parents[2]
    for target in SHORT_NAMES[kind].values():
        module, _, name = target.partition(":")
        text = (package / f"{module.replace('.', '/')}.py").read_text()
        assert f"def {name}(" in text or f"class {name}" in text
