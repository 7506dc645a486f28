"""A trainer's state on disk: tensors as safetensors, the rest as JSON that names and hashes them.

Effects, in order: the tensors are written under a name of their own and synced; the JSON that names
them replaces the one before; older tensors are removed. A crash after any of these leaves the old
state or the new one, whole.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash
from safetensors.torch import load_file, save_file
from torch import Tensor

from astra_stream.errors import ConfigError

STATE_FILE = "trainer_state.json"
READ_BYTES = 1 << 24


def write_state(
    directory: Path, *, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], name: str
) -> None:
    """Write a state, replacing the one in the directory.

    Args:
        directory: Made where it does not exist.
        tensors: By name; contiguous.
        facts: What JSON can hold.
        name: Tells this state's tensors from the ones before, such as its step.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensor_file = directory / f"trainer_state-{name}.safetensors"
    save_file({n: t.contiguous() for n, t in tensors.items()}, tensor_file)
    _sync(tensor_file)
    entry = {"file": tensor_file.name, "xxh3": _hash(tensor_file)}
    partial = directory / f"{STATE_FILE}.partial"
    partial.write_text(json.dumps({**facts, "tensors": entry}, indent=2, sort_keys=True))
    _sync(partial)
    partial.replace(directory / STATE_FILE)
    _sync(directory)
    for old in directory.glob("trainer_state-*.safetensors"):
        if old != tensor_file:
            old.unlink()


def read_state(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``write_state`` wrote.

    Returns:
        Tensors by name, and the facts.

    Raises:
        ConfigError: There is no state, or its tensors are not the ones it was written with.
    """
    state_file = directory / STATE_FILE
    if not state_file.is_file():
        raise ConfigError(
            f"checkpoint must be a directory with {STATE_FILE}: got {str(directory)!r}. "
            "Name one that a trainer wrote."
        )
    facts = json.loads(state_file.read_text())
    entry = facts.pop("tensors")
    tensor_file = directory / entry["file"]
    got = _hash(tensor_file) if tensor_file.is_file() else "no file"
    if got != entry["xxh3"]:
        raise ConfigError(
            f"{tensor_file.name} must have the hash {entry['xxh3']}: got {got}. "
            "Use another checkpoint; this one is damaged."
        )
    return load_file(tensor_file), facts


def _hash(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while part := file.read(READ_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
