"""Prompt: a task handed to an episode, with its checkable answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astra_stream.records.checks import require_one_of, require_text

SPLITS = ("train", "held_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    """Who speaks: system, user, assistant or tool."""
    content: str
    """What is said, before any chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A task; an edited task is another prompt, because its id holds the hash of its content."""

    prompt_id: str
    """Identity: <dataset>/<row>/<content hash>."""
    split: str
    """train or held_out; a text is never in both."""
    messages: tuple[ChatMessage, ...]
    """The conversation that the policy is to continue, oldest first; at least one message."""
    environment: str
    """Short name or module:name of the environment that judges it; empty means the run's own."""
    answer: str
    """What the environment compares with; empty where the environment needs none."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields for the environment: name to JSON text."""
    dataset: str = ""
    """Name of the data set that it came from."""
    features: Mapping[str, str] = field(default_factory=dict)
    """What a prompt selector may look at (difficulty, category): name to JSON text."""

    def __post_init__(self) -> None:
        require_text("prompt.prompt_id", self.prompt_id)
        require_one_of("prompt.split", self.split, SPLITS)
        require_text("prompt.messages", "".join(m.content for m in self.messages))
