from functools import partial
from pathlib import Path

import pytest

from astra_stream.algorithms.losses import decoupled_ppo, grpo
from astra_stream.testing.backend_contract import BackendContract
from astra_stream.testing.tiny_models import save_tiny_model
from astra_stream.training.torch_backend import TorchBackend


@pytest.fixture(autouse=True, scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    BackendContract.model = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return BackendContract.model


class TestOneUpdate(BackendContract):
    def make(self) -> TorchBackend:
        return TorchBackend(self.model, loss=partial(grpo, clip_high=0.28), lr=1e-2)


class TestSeveralUpdates(BackendContract):
    def make(self) -> TorchBackend:
        return TorchBackend(
            self.model,
            loss=decoupled_ppo,
            lr=1e-2,
            updates_per_batch=2,
            warmup_steps=3,
            weight_decay=0.1,
            tokens_per_micro_batch=1,
        )
