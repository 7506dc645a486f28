import json

from astra_stream.algorithms.fingerprint import NamedShape, model_fingerprint
from astra_stream.records import TensorEntry

CONFIG = {"hidden_size": 32, "model_type": "qwen3"}
TENSORS = [NamedShape("a", "BF16", (2, 3)), NamedShape("b", "BF16", (3,))]


def test_order_and_unrelated_fields_of_the_configuration_do_not_matter():
    other = {"transformers_version": "5", **dict(reversed(CONFIG.items())), "dtype": "float32"}
    plain = model_fingerprint(json.dumps(CONFIG), TENSORS)
    assert model_fingerprint(json.dumps(other, indent=2), TENSORS) == plain
    assert len(plain) == 64


def test_configuration_names_dtypes_shapes_and_order_matter():
    text = json.dumps(CONFIG)
    different = {
        model_fingerprint(text, TENSORS),
        model_fingerprint(json.dumps(CONFIG | {"hidden_size": 33}), TENSORS),
        model_fingerprint(text, TENSORS[::-1]),
        model_fingerprint(text, [TENSORS[0]._replace(name="c"), TENSORS[1]]),
        model_fingerprint(text, [TENSORS[0]._replace(dtype="F32"), TENSORS[1]]),
        model_fingerprint(text, [TENSORS[0]._replace(shape=(3, 2)), TENSORS[1]]),
    }
    assert len(different) == 6


def test_a_tensor_table_of_an_announcement_is_read_alike():
    entries = [TensorEntry(name=t.name, dtype=t.dtype, shape=t.shape, xxh3="") for t in TENSORS]
    text = json.dumps(CONFIG)
    assert model_fingerprint(text, entries) == model_fingerprint(text, TENSORS)
