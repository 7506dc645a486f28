"""One hash for a model's architecture: what must agree before bytes may be loaded into it."""

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple, Protocol

UNRELATED_FIELDS = frozenset(
    {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
"""Fields of config.json that say nothing about what the tensors mean."""


class TensorShape(Protocol):
    """Anything with a name, a dtype and a shape, such as a ``TensorEntry``."""

    @property
    def name(self) -> str:
        """Hugging Face parameter name."""
        ...

    @property
    def dtype(self) -> str:
        """Dtype as safetensors names it, such as BF16."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        ...


class NamedShape(NamedTuple):
    """The plainest ``TensorShape``."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def model_fingerprint(config_json: str, tensors: Iterable[TensorShape]) -> str:
    """SHA-256 of a model's configuration and its tensors' names, dtypes and shapes.

    Args:
        config_json: Text of the model directory's config.json; neither the order of its fields nor
            those of ``UNRELATED_FIELDS`` matter.
        tensors: Every tensor in published order.

    Returns:
        64 hex digits.
    """
    config = {k: v for k, v in json.loads(config_json).items() if k not in UNRELATED_FIELDS}
    table = [[one.name, one.dtype, list(one.shape)] for one in tensors]
    text = json.dumps([config, table], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
