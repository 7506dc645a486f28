"""``use = "module:name"``: find the callable, check its parameters, bind them.

Built-ins have short names in a literal table, so that nothing is imported until it is chosen.
Parameters are the callable's keyword-only ones; positional ones are what it is called with.
"""

import collections.abc
import difflib
import functools
import importlib
import inspect
import json
import sys
import traceback
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from astra_stream.errors import ConfigError

SHORT_NAMES: dict[str, dict[str, str]] = {
    "prompt_source": {
        "jsonl": "astra_stream.connectors.prompt_files:jsonl",
        "csv": "astra_stream.connectors.prompt_files:csv",
        "parquet": "astra_stream.connectors.prompt_tables:parquet",
        "datasets": "astra_stream.connectors.prompt_tables:datasets",
        "reasoning_gym": "astra_stream.connectors.prompt_tasks:reasoning_gym",
    },
    "prompt_selector": {"shuffled": "astra_stream.algorithms.scheduling:shuffled"},
    "environment": {
        "verifiable": "astra_stream.environments.verifiable:Verifiable",
        "reasoning_gym": "astra_stream.environments.reasoning_gym:ReasoningGym",
    },
    "engine": {
        "transformers": "astra_stream.engines.transformers_engine:TransformersEngine",
        "scripted": "astra_stream.engines.scripted:ScriptedEngine",
    },
    "stage": {
        "drop_uniform": "astra_stream.algorithms.selection:drop_uniform_groups",
        "drop_truncated": "astra_stream.algorithms.selection:drop_truncated_groups",
    },
    "advantage": {"group_relative": "astra_stream.algorithms.advantage:group_relative"},
    "loss": {
        "grpo": "astra_stream.algorithms.losses:grpo",
        "decoupled_ppo": "astra_stream.algorithms.losses:decoupled_ppo",
    },
}
"""Kind of plugin, then short name, then where it is."""

EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "reasoning_gym": "examples",
    "pyarrow": "examples",
}
"""Package that a built-in needs, then the extra that brings it."""

RULES = {
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
}
"""What a value must be, for kinds of mistake that pydantic words for programmers."""

FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a user's module may raise while it is imported."""


def resolve(
    use: str, kind: str, *, where: str = "use", directory: Path | None = None
) -> Callable[..., Any]:
    """Find the callable that ``use`` names.

    Args:
        use: A short name of ``kind``, or ``module:name``.
        kind: A key of ``SHORT_NAMES``.
        where: Subject of an error, such as ``run.toml: policies.main.loss``.
        directory: Looked in first for a user's module; stays on ``sys.path``.

    Raises:
        ConfigError: The name is unknown, or its module cannot be imported; names the file.
    """
    names = SHORT_NAMES[kind]
    target = names.get(use, use)
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ConfigError(
            f"{where}.use must be one of {sorted(names)} or module:name: got {use!r}."
            f"{_did_you_mean(use, names)}"
        )
    return _locate(target, where=f"{where} ({use})", directory=directory)


def bind(
    use: str,
    parameters: Mapping[str, Any],
    *,
    kind: str,
    where: str,
    supplied: Collection[str] = (),
    directory: Path | None = None,
) -> functools.partial[Any]:
    """Find the callable and fix its parameters, checked against its annotations.

    A value ``"module:name"`` becomes the callable where the annotation asks for one, and a
    relative path is one in ``directory``.

    Args:
        use: A short name of ``kind``, or ``module:name``.
        parameters: What stands beside ``use`` in the run file.
        kind: A key of ``SHORT_NAMES``.
        where: Subject of an error, such as ``run.toml: policies.main.pipeline[0]``.
        supplied: Keyword-only parameters that the caller gives later, not the user.
        directory: The run file's.

    Returns:
        The callable with its parameters; its attributes are at ``.func``.

    Raises:
        ConfigError: Lists every wrong parameter.
    """
    found = resolve(use, kind, where=where, directory=directory)
    options = _options(found, f"{where} ({use})")
    takes = [name for name in options if name not in supplied]
    problems: list[str] = []
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        if name not in takes:
            near = _did_you_mean(name, takes)
            problems.append(f"{where} ({use}): has no parameter {name!r}: it takes {takes}.{near}")
            continue
        try:
            subject = f"{where} ({use}): {name}"
            values[name] = _checked(value, options[name].annotation, subject, directory)
        except ConfigError as error:
            problems.append(str(error))
        except ValueError as error:
            problems.append(f"{where} ({use}): {name} {error} It takes {takes}.")
    problems += [
        f"{where} ({use}): {name} must be given: got nothing. It takes {takes}."
        for name in takes
        if name not in parameters and options[name].default is inspect.Parameter.empty
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return functools.partial(found, **values)


def _locate(target: str, *, where: str, directory: Path | None) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Any = _import(module, where=where, directory=directory)
    for part in name.split("."):
        if not hasattr(found, part):
            close = _did_you_mean(part, [n for n in vars(found) if not n.startswith("_")])
            raise ConfigError(
                f"{where}: {module} must have {part!r}: got no such name in "
                f"{getattr(found, '__file__', module)}.{close}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{where}: must be callable: got {found!r}. Name a function or a class.")
    return typing.cast("Callable[..., Any]", found)


def _import(module: str, *, where: str, directory: Path | None) -> Any:
    if not _is_ours(module) and directory is not None and str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module.partition(".")[0] == missing.partition(".")[0]:
            place = (
                f"{directory} or among installed packages" if directory else "installed packages"
            )
            raise ConfigError(
                f"{where}: module {missing!r} must exist: got nothing in {place}. "
                "Put the file beside the run file."
            ) from None
        extra = EXTRAS.get(missing.partition(".")[0], "") if _is_ours(module) else ""
        remedy = f"pip install 'astra-stream[{extra}]'" if extra else "Install the package"
        raise ConfigError(
            f"{where}: needs the package {missing!r}: got none installed. {remedy}."
        ) from None
    except FAILURES as error:
        raise ConfigError(
            f"{where}: {_place(error)} must import: got {_said(error)}. Correct it."
        ) from error


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _said(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}"


def _options(found: Callable[..., Any], where: str) -> dict[str, inspect.Parameter]:
    """Keyword-only parameters by name, annotations evaluated."""
    try:
        parameters = inspect.signature(found, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: must have a readable signature: got {error}. Import what it names."
        ) from None
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _checked(value: Any, annotation: Any, subject: str, directory: Path | None) -> Any:
    """The value as the annotation wants it.

    Raises:
        ValueError: It is not one; reads ``must be ...: got ...`` without a subject.
        ConfigError: It names a callable that is not there; reads whole.
    """
    if annotation is inspect.Parameter.empty or annotation is Any:
        return value
    if _is_callable(annotation) and isinstance(value, str) and ":" in value:
        return _locate(value, where=f"{subject} ({value})", directory=directory)
    try:
        adapter = TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        raise ValueError(f"must not be set in a file: got {value!r}.") from None
    try:
        checked = adapter.validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        raise ValueError(f"must be {_rule(error)}: got {value!r}.") from None
    if isinstance(checked, Path) and directory is not None:
        return Path(directory, checked.expanduser())
    return checked


def _is_callable(annotation: Any) -> bool:
    parts = typing.get_args(annotation)
    is_one = annotation in {Callable, typing.Callable}
    is_one = is_one or typing.get_origin(annotation) is collections.abc.Callable
    return is_one or any(_is_callable(part) for part in parts if not isinstance(part, list))


def _rule(error: ValidationError) -> str:
    rules = []
    for detail in error.errors(include_url=False):
        said = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        rules.append(
            "module:name of a callable"
            if "callable" in detail["type"]
            else RULES.get(detail["type"], said)
        )
    return " or ".join(dict.fromkeys(rules))


def _did_you_mean(word: str, words: Collection[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
