"""The shapes of the data algorithms, and ``@processor``, which checks one when it is defined.

A group processor is a function of a group that yields groups, or a frozen dataclass whose ``step``
does so with a state per key. Parameters are keyword-only: they are its configuration.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import numpy as np

from astra_stream.records import Group

Decorated = TypeVar("Decorated")

GroupFunction = Callable[[Group], Iterable[Group]]
"""A group in; none, one or several groups out."""

AdvantageFunction = Callable[[tuple[Group, ...]], np.ndarray]
"""Groups of a batch in; float32 [number of valid trajectories] out, by group, then sample."""


class GroupStep(Protocol):
    """A group processor with memory; ``State`` is a frozen dataclass with defaults."""

    State: type

    def key(self, group: Group) -> str:
        """What the state belongs to; derivable from the prompt id."""
        ...

    def step(self, state: Any, group: Group) -> tuple[Any, Iterable[Group]]:
        """The next state, and the groups that go on."""
        ...


def processor(decorated: Decorated) -> Decorated:
    """Mark a function or a class as a group processor.

    Args:
        decorated: ``(group, *, parameters) -> iterable of groups``, or a class with ``State``,
            ``key`` and ``step``.

    Returns:
        The same object with the attribute ``is_processor``.

    Raises:
        TypeError: It has another shape; says which part.
    """
    if inspect.isclass(decorated):
        _check_class(decorated)
    elif callable(decorated):
        _check_function(decorated)
    else:
        raise TypeError(f"a processor must be a function or a class: got {decorated!r}.")
    decorated.is_processor = True  # pyrefly: ignore[missing-attribute]
    return decorated


def _check_function(function: Callable[..., Any]) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(f"{function.__name__} must take a group first: got no such parameter.")
    for parameter in parameters[1:]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(
                f"{function.__name__} must take its parameters by keyword only: got "
                f"{parameter.name!r} by position. Put '*' before it."
            )


def _check_class(cls: type) -> None:
    for name in ("State", "key", "step"):
        if not hasattr(cls, name):
            raise TypeError(f"{cls.__name__} must have {name}: got none. See docs/extend.")
    if not dataclasses.is_dataclass(cls.State):
        raise TypeError(f"{cls.__name__}.State must be a dataclass: got {cls.State!r}.")
