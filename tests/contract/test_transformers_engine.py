"""The transformers engine under the engine contract, on a tiny random model."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from astra_stream.engines.interface import Engine, OnSwap, WeightUpdate
from astra_stream.engines.model_directory import read_weights
from astra_stream.engines.transformers_engine import TransformersEngine
from astra_stream.errors import ConfigError, TransientError, WeightsError
from astra_stream.records import PolicyVersion, Sampling
from astra_stream.testing.engine_contract import (
    CONTEXT_TOKENS,
    FIRST,
    LONG,
    SECOND,
    ForwardPassContract,
    prompt_of,
)

TERMINATOR = 2
CHARACTERS = "<->abcdefghijklmnopqrstuvwxyz0"
SHAPE = {
    "vocab_size": len(CHARACTERS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT_TOKENS,
    "eos_token_id": TERMINATOR,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
MODELS = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, tie_word_embeddings=False)),
    "llama-tied": (LlamaForCausalLM, LlamaConfig(**SHAPE, tie_word_embeddings=True)),
}


def tiny_model(kind: str, version: PolicyVersion) -> PreTrainedModel:
    torch.manual_seed(version.number)
    make, config = MODELS[kind]
    model = make(config).eval().requires_grad_(requires_grad=False)
    for parameter in model.parameters():
        # Not model.to(): that would round the rotary frequencies too.
        parameter.copy_(parameter.to(torch.bfloat16))
    return model


def save(model: PreTrainedModel, directory: Path) -> None:
    model.config.save_pretrained(directory)
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    tensors = {n: t.to(torch.bfloat16) for n, t in model.state_dict().items() if n not in tied}
    save_file(tensors, directory / "model.safetensors")
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, "-"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(directory / "tokenizer.json"))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models_by_version() -> dict[PolicyVersion, PreTrainedModel]:
    return {version: tiny_model("qwen3", version) for version in (FIRST, SECOND)}


@pytest.fixture(scope="module")
def directories(
    models_by_version: dict[PolicyVersion, PreTrainedModel],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[PolicyVersion, Path]:
    paths = {version: tmp_path_factory.mktemp("model") for version in models_by_version}
    for version, model in models_by_version.items():
        save(model, paths[version])
    return paths


class TestTransformersEngine(ForwardPassContract):
    terminator = TERMINATOR

    @pytest.fixture(autouse=True)
    def _use(
        self,
        models_by_version: dict[PolicyVersion, PreTrainedModel],
        directories: dict[PolicyVersion, Path],
    ) -> None:
        self.models = models_by_version
        self.directories = directories

    def make_engine(self, *, on_swap: OnSwap = "keep_kv", ends: bool = False) -> Engine:
        return TransformersEngine(
            self.directories[FIRST], slots=6, on_swap=on_swap, terminators=None if ends else ()
        )

    def make_update(self, version: PolicyVersion) -> WeightUpdate:
        return read_weights(self.directories[version], version)

    @torch.inference_mode()
    def forward(self, tokens: np.ndarray, version: PolicyVersion) -> np.ndarray:
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        return self.models[version](ids).logits[0].numpy()

    def test_requests_wait_for_the_first_weights(self) -> None:
        async def run() -> None:
            engine = self.make_engine()
            waiting = asyncio.create_task(engine.generate(prompt_of(3), Sampling(max_new_tokens=2)))
            await engine.load(self.make_update(SECOND))
            assert (await waiting).spans[0][1:] == SECOND
            await engine.close()

        asyncio.run(run())

    def test_the_directorys_own_weights_can_be_the_first(self) -> None:
        async def run() -> None:
            engine = TransformersEngine(self.directories[SECOND], initial_version=SECOND)
            assert engine.version == SECOND
            completion = await engine.generate(prompt_of(3), Sampling(max_new_tokens=2))
            wanted = self.expected(prompt_of(3), completion, Sampling(), SECOND)
            np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-4)
            await engine.close()

        asyncio.run(run())

    def test_a_stop_text_ends_the_reply_and_is_part_of_it(self) -> None:
        async def test(engine: Engine) -> None:
            sampling = replace(LONG, max_new_tokens=30)
            plain = await engine.generate(prompt_of(5), sampling)
            text = "".join(CHARACTERS[token] for token in plain.tokens)
            stop = text[12:15]
            stopped = await engine.generate(prompt_of(5), replace(sampling, stop=("no such", stop)))
            assert stopped.finish_reason == "stop"
            end = text.index(stop) + len(stop)
            assert stopped.tokens.tolist() == plain.tokens[:end].tolist()

        self.play(test)

    @pytest.mark.parametrize("limits", [{"top_k": 2}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.9}])
    def test_limited_draws_keep_likely_tokens_and_full_logprobs(self, limits: dict) -> None:
        async def test(engine: Engine) -> None:
            sampling = replace(LONG, max_new_tokens=60, **limits)
            completion = await engine.generate(prompt_of(5), sampling)
            wanted = self.expected(prompt_of(5), completion, sampling, FIRST)
            np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-4)
            whole = np.concatenate([prompt_of(5), completion.tokens])
            logits = self.forward(whole, FIRST)[4:-1]
            ranks = (logits > np.take_along_axis(logits, completion.tokens[:, None], 1)).sum(axis=1)
            assert ranks.max() < limits.get("top_k", 30)
            if "top_p" in limits:
                chances = np.exp(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
                ordered = np.sort(chances, axis=1)[:, ::-1]
                mass_before = (np.cumsum(ordered, axis=1) - ordered)[np.arange(60), ranks]
                assert mass_before.max() < limits["top_p"] + 1e-5

        self.play(test)

    @pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "dtype"])
    def test_weights_that_do_not_fit_are_refused_by_name_and_the_old_ones_stay(
        self, fault: str
    ) -> None:
        update, name = self.make_update(SECOND), "model.norm.weight"
        tensors, dtypes = dict(update.tensors), dict(update.dtypes)
        if fault == "missing":
            del tensors[name]
        elif fault == "unknown":
            name = "model.unknown.weight"
            tensors[name] = np.zeros(3, np.float32)
        elif fault == "shape":
            tensors[name] = tensors[name][:-1]
        else:
            dtypes[name] = "F8_E4M3"

        async def test(engine: Engine) -> None:
            with pytest.raises(WeightsError, match=name):
                await engine.load(WeightUpdate(version=SECOND, tensors=tensors, dtypes=dtypes))
            assert engine.version == FIRST
            completion = await engine.generate(prompt_of(5), Sampling(max_new_tokens=9))
            wanted = self.expected(prompt_of(5), completion, Sampling(), FIRST)
            np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-4)

        self.play(test)

    def test_an_error_in_the_loop_fails_every_request(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def run() -> None:
            engine = self.make_engine()
            await engine.load(self.make_update(FIRST))
            running = asyncio.create_task(engine.generate(prompt_of(5), LONG))
            out_of_vocabulary = np.array([10_000], dtype=np.int32)
            with caplog.at_level(logging.CRITICAL), pytest.raises(TransientError, match="index"):
                await engine.generate(out_of_vocabulary, Sampling(max_new_tokens=4))
            with pytest.raises(TransientError, match="must keep running"):
                await running
            with pytest.raises(TransientError, match="must be open"):
                await engine.generate(prompt_of(5), LONG)
            await engine.close()
            assert "decode loop failed" in caplog.text

        asyncio.run(run())


def test_tied_weights_travel_once_and_another_architecture_computes_the_same(
    tmp_path: Path,
) -> None:
    model = tiny_model("llama-tied", FIRST)
    save(model, tmp_path)

    async def run() -> None:
        engine = TransformersEngine(tmp_path, initial_version=FIRST, terminators=())
        completion = await engine.generate(prompt_of(9), Sampling(max_new_tokens=12))
        ids = torch.from_numpy(np.concatenate([prompt_of(9), completion.tokens]).astype(np.int64))
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(ids[None]).logits[0, 8:-1], dim=-1)
        wanted = logprobs.gather(1, ids[9:, None])[:, 0].numpy()
        np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-4)
        await engine.close()

    asyncio.run(run())


def test_a_directory_without_a_model_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must hold a config\.json"):
        TransformersEngine(tmp_path)


def test_a_directory_without_weights_has_no_initial_version(tmp_path: Path) -> None:
    Qwen3Config(**SHAPE).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"\*\.safetensors"):
        TransformersEngine(tmp_path, initial_version=FIRST)


def test_stop_texts_without_a_tokenizer_are_a_users_mistake(tmp_path: Path) -> None:
    Qwen3Config(**SHAPE).save_pretrained(tmp_path)

    async def run() -> None:
        engine = TransformersEngine(tmp_path)
        with pytest.raises(ConfigError, match="stop texts"):
            await engine.generate(prompt_of(2), Sampling(max_new_tokens=2, stop=("x",)))
        await engine.close()

    asyncio.run(run())
