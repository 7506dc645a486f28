"""fp32 master weights, their optimizer, and the rounded values that a model computes with.

The model's parameters always hold the bf16 values that are published, in fp32. Gradients are taken
there and applied to the masters as they are (straight through the rounding).
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from astra_stream.errors import ConfigError
from astra_stream.training.interface import ExportedWeights

MOMENTS = ("exp_avg", "exp_avg_sq")


class MasterWeights:
    """AdamW over fp32 copies of a model's parameters; tied parameters are one.

    Args:
        model: Whose parameters, in its own order, are the start; from now on they are rounded.
        lr: Learning rate after the warm-up; 0 trains nothing.
        betas: Of AdamW.
        eps: Of AdamW.
        weight_decay: On matrices; vectors (norms, biases) are not decayed.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.masters = {n: p.detach().clone() for n, p in self.parameters.items()}
        self.buffers = {
            name: tensor
            for name, tensor in model.state_dict(keep_vars=True).items()
            if not isinstance(tensor, nn.Parameter)
        }
        matrices = [m for m in self.masters.values() if m.ndim > 1]
        vectors = [m for m in self.masters.values() if m.ndim <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors}],
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=0.0,
            fused=True,
        )
        self.num_updates = 0
        self.round_into_model()

    def update(self, *, lr: float) -> None:
        """Apply the gradients of the model's parameters to the masters and round again."""
        for name, parameter in self.parameters.items():
            self.masters[name].grad = parameter.grad
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.num_updates += 1
        self.forget_gradients()
        self.round_into_model()

    def forget_gradients(self) -> None:
        """Drop every gradient."""
        for name, parameter in self.parameters.items():
            parameter.grad = None
            self.masters[name].grad = None

    @torch.no_grad()
    def round_into_model(self) -> None:
        """Give the model the bf16 values of the masters."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.masters[name].to(torch.bfloat16))

    def export(self) -> ExportedWeights:
        """Copy the published values: parameters as bf16, buffers in their own dtype."""
        tensors: dict[str, np.ndarray] = {}
        dtypes: dict[str, str] = {}
        for name, parameter in self.parameters.items():
            tensors[name] = parameter.detach().to(torch.bfloat16).view(torch.uint16).numpy()
            dtypes[name] = "BF16"
        for name, buffer in self.buffers.items():
            tensors[name], dtypes[name] = _export_buffer(name, buffer)
        return ExportedWeights(tensors=tensors, dtypes=dtypes)

    def state(self) -> dict[str, Tensor]:
        """Masters and moments by ``<kind>.<name>``; not copied."""
        state = {f"master.{name}": master for name, master in self.masters.items()}
        for name, master in self.masters.items():
            moments = self.optimizer.state.get(master, {})
            for kind in MOMENTS:
                state[f"{kind}.{name}"] = moments.get(kind, torch.zeros_like(master))
        return state

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor], *, num_updates: int) -> None:
        """Continue from what ``state`` gave after ``num_updates`` updates; values are copied.

        Raises:
            ConfigError: Names or shapes are not this model's; nothing was changed.
        """
        wanted = {name: tensor.shape for name, tensor in self.state().items()}
        got = {name: tensor.shape for name, tensor in state.items()}
        if wanted != got:
            names = sorted(n for n in wanted | got if wanted.get(n) != got.get(n))
            raise ConfigError(
                f"checkpoint must hold this model's tensors: got a difference in {names[:3]}. "
                "Use the model that it was made with."
            )
        for name, master in self.masters.items():
            master.copy_(state[f"master.{name}"])
            if num_updates:
                moments = {kind: state[f"{kind}.{name}"].clone() for kind in MOMENTS}
                step = torch.tensor(float(num_updates))
                self.optimizer.state[master] = {"step": step, **moments}
            else:
                self.optimizer.state.pop(master, None)
        self.num_updates = num_updates
        self.round_into_model()


def _export_buffer(name: str, buffer: Tensor) -> tuple[np.ndarray, str]:
    names = {torch.float32: "F32", torch.int64: "I64", torch.int32: "I32", torch.bool: "BOOL"}
    if buffer.dtype not in names:
        raise ConfigError(
            f"buffer {name!r} must be one of {sorted(names.values())}: got {buffer.dtype}. "
            "Choose a model without it."
        )
    return buffer.detach().cpu().numpy().copy(), names[buffer.dtype]
