"""A followed snapshot is a directory that Hugging Face's own library loads."""

from pathlib import Path

import numpy as np
import pytest

from astra_stream.records import PolicyVersion
from astra_stream.store.blobs import DirectoryStore
from astra_stream.weights.follower import SnapshotFollower
from astra_stream.weights.publisher import SnapshotPublisher


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_huggingface_loads_what_was_followed(tmp_path: Path):
    import torch
    from transformers import AutoModelForCausalLM

    from astra_stream.testing.tiny_models import save_tiny_model

    source = save_tiny_model(tmp_path / "source", tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    tensors = {
        name: parameter.detach().view(torch.uint16).numpy()
        for name, parameter in model.named_parameters()
    }
    store = DirectoryStore(tmp_path / "store")
    publisher = SnapshotPublisher(
        store, policy="main", files={"config.json": (source / "config.json").read_bytes()}
    )
    announced = publisher.publish(
        tensors, dict.fromkeys(tensors, "BF16"), version=PolicyVersion(0, 1)
    )
    follower = SnapshotFollower(store, tmp_path / "followed", "main")
    update = follower.fetch(announced)
    loaded = AutoModelForCausalLM.from_pretrained(
        follower.model_directory(announced), dtype=torch.bfloat16
    )
    found = dict(loaded.named_parameters())
    assert found.keys() == tensors.keys() == update.tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name].detach().view(torch.uint16).numpy(), array)
        np.testing.assert_array_equal(update.tensors[name], array)
