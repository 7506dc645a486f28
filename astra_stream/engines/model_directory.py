"""A model from a Hugging Face directory: its shape, its weights, and putting others in place."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from astra_stream.engines.interface import WeightUpdate
from astra_stream.errors import ConfigError, WeightsError
from astra_stream.records import PolicyVersion

DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
BF16_SHIFT = 16


def build_model(directory: Path) -> Any:
    """Make the directory's model in float32, its parameters not yet set.

    Raises:
        ConfigError: There is no model there, or one with attention that is not full.
    """
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"model directory must hold a config.json: got {str(directory)!r}. Name the directory "
            "of a Hugging Face model."
        )
    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"model must use full attention in every layer: got {sorted(kinds)}. Choose another "
            "model or another engine."
        )
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa"
        )
    model.tie_weights()
    model.requires_grad_(requires_grad=False)
    return model.eval()


def terminator_ids(directory: Path) -> tuple[int, ...]:
    """Token ids that end a reply, from the generation settings and else the configuration."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if ids is not None:
            return tuple(ids) if isinstance(ids, list) else (int(ids),)
    return ()


def read_weights(directory: Path, version: PolicyVersion) -> WeightUpdate:
    """The directory's safetensors as an update.

    Raises:
        ConfigError: It has none.
    """
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise ConfigError(
            f"model directory must hold *.safetensors: got {str(directory)!r}. Save the weights "
            "there, or start the engine without a version."
        )
    tensors: dict[str, np.ndarray] = {}
    dtypes: dict[str, str] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                dtypes[name], tensors[name] = _as_numpy(file.get_tensor(name))
    return WeightUpdate(version=version, tensors=tensors, dtypes=dtypes)


def _as_numpy(tensor: torch.Tensor) -> tuple[str, np.ndarray]:
    name = DTYPE_NAMES[tensor.dtype]
    return name, (tensor.view(torch.uint16) if name == "BF16" else tensor).numpy()


class ModelWeights:
    """The parameters of a model by name, replaced in place or not at all.

    Args:
        model: A float32 model on the CPU.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        owners: dict[int, str] = {}
        self._aliases: dict[str, str] = {}
        for name, tensor in model.state_dict().items():
            owner = owners.setdefault(tensor.data_ptr(), name)
            if owner == name:
                self._arrays[name] = tensor.numpy()
            self._aliases[name] = owner

    def replace(self, update: WeightUpdate) -> None:
        """Copy an update over the parameters; of tied tensors any one name is enough.

        Raises:
            WeightsError: A tensor is missing, unknown or of another shape or dtype; nothing has
                changed then.
        """
        for name, array in update.tensors.items():
            self._require_fit(name, array, update.dtypes.get(name, ""))
        given = {self._aliases[name] for name in update.tensors}
        missing = sorted(self._arrays.keys() - given)
        if missing:
            raise WeightsError(
                f"weights of {update.version} must hold every tensor: got none for {missing[0]!r} "
                f"and {len(missing) - 1} more. Publish the whole model."
            )
        for name, array in update.tensors.items():
            _copy(array, self._arrays[self._aliases[name]], update.dtypes[name])

    def _require_fit(self, name: str, array: np.ndarray, dtype: str) -> None:
        if name not in self._aliases:
            raise WeightsError(
                f"weights must name tensors of the model: got {name!r}. Publish the same model "
                "that the engine serves."
            )
        shape = self._arrays[self._aliases[name]].shape
        if array.shape != shape:
            raise WeightsError(
                f"tensor {name!r} must have shape {shape}: got {array.shape}. Publish the same "
                "model that the engine serves."
            )
        if dtype not in DTYPE_NAMES.values():
            raise WeightsError(
                f"tensor {name!r} must be one of {sorted(DTYPE_NAMES.values())}: got {dtype!r}. "
                "Publish it in one of these."
            )


def _copy(array: np.ndarray, target: np.ndarray, dtype: str) -> None:
    if dtype == "BF16":
        bits: Any = target.view(np.uint32)
        np.left_shift(array, BF16_SHIFT, out=bits, dtype=np.uint32)
    else:
        target[...] = array
