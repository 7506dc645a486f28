"""How many tokens a second does the engine make, against ``model.generate``?

    python benchmarks/bench_engine_throughput.py [--model DIR] [--json PATH]

Same model, prompts, lengths, batch size and threads, terminators off, temperature 1, at 32 slots
and at 64, which is the engine's default. ``generate`` takes the prompts in static batches of as
many, each as long as its longest reply, and only the tokens that were asked for count; it gives no
log-probabilities, the engine does. Rounds alternate; the fastest of each counts. The rows in CPU
time say what the clock would on a machine with nothing else to do. Without ``--model``: a random
Qwen3 of 1M parameters.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import report
import torch
from report import Row
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from astra_stream.engines.transformers_engine import TransformersEngine
from astra_stream.records import PolicyVersion, Sampling

QUESTION = "How many tokens a second does the engine make, against model.generate?"
EQUAL_GOAL, SPREAD_GOAL = 0.9, 1.5
SPREAD = 8
FIRST = PolicyVersion(0, 0)


@dataclass(frozen=True, kw_only=True)
class Work:
    directory: Path
    prompts: np.ndarray
    """[N, T] int32, all different."""
    lengths: np.ndarray
    """[N] tokens wanted of each."""
    slots: int
    threads: int


class Seconds(NamedTuple):
    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Self:
        return cls(time.perf_counter(), time.process_time())

    @classmethod
    def since(cls, begin: Self) -> Self:
        return cls(*(after - before for after, before in zip(cls.now(), begin, strict=True)))


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--model", type=Path, help="Hugging Face directory")
    arguments.add_argument("--prompts", type=int, default=256)
    arguments.add_argument("--prompt-tokens", type=int, default=16)
    arguments.add_argument("--max-new-tokens", type=int, default=96)
    arguments.add_argument("--slots", type=int, nargs="+", default=[32, 64])
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--rounds", type=int, default=2)
    options = arguments.parse_args()
    disable_progress_bar()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.model or random_model(Path(scratch))
        vocabulary = AutoModelForCausalLM.from_pretrained(directory).config.vocab_size
        shape = (options.prompts, options.prompt_tokens)
        prompts = rng.integers(3, vocabulary, size=shape, dtype=np.int32)
        equal = np.full(options.prompts, options.max_new_tokens)
        shortest = max(1, options.max_new_tokens // SPREAD)
        spread = rng.integers(shortest, options.max_new_tokens, endpoint=True, size=options.prompts)
        rows = []
        kinds = {
            "all lengths equal": (equal, EQUAL_GOAL),
            f"lengths spread 1:{SPREAD}": (spread, SPREAD_GOAL),
        }
        for slots, (name, (lengths, goal)) in product(options.slots, kinds.items()):
            work = Work(
                directory=directory,
                prompts=prompts,
                lengths=lengths,
                slots=slots,
                threads=options.threads,
            )
            rows += compare(f"{slots} slots, {name}", work, goal=goal, rounds=options.rounds)
    report.write(QUESTION, rows, json_path=options.json)


def compare(name: str, work: Work, *, goal: float, rounds: int) -> list[Row]:
    fastest: dict[Callable[[Work], Seconds], Seconds]
    fastest = {way: Seconds(float("inf"), float("inf")) for way in (run_engine, run_generate)}
    for _ in range(rounds):
        for way in fastest:
            seconds = way(work)
            fastest[way] = Seconds(*map(min, zip(fastest[way], seconds, strict=True)))
    num_tokens = int(work.lengths.sum())
    engine, generate = (num_tokens / seconds.clock for seconds in fastest.values())
    engine_cpu, generate_cpu = (seconds.cpu for seconds in fastest.values())
    return [
        Row(name=name, value=engine, unit="tokens/s", baseline=generate, higher_is_better=True),
        Row(
            name=f"{name}, engine / generate",
            value=engine / generate,
            unit="x",
            baseline=1.0,
            goal=goal,
            higher_is_better=True,
        ),
        Row(
            name=f"{name}, engine / generate in CPU time",
            value=generate_cpu / engine_cpu,
            unit="x",
            baseline=1.0,
            higher_is_better=True,
        ),
    ]


def run_engine(work: Work) -> Seconds:
    return asyncio.run(_run_engine(work))


async def _run_engine(work: Work) -> Seconds:
    engine = TransformersEngine(
        work.directory,
        slots=work.slots,
        num_threads=work.threads,
        initial_version=FIRST,
        terminators=(),
    )
    await engine.generate(work.prompts[0], Sampling(max_new_tokens=2))
    begin = Seconds.now()
    completions = await asyncio.gather(
        *(
            engine.generate(prompt, Sampling(max_new_tokens=int(length), seed=seed))
            for seed, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True))
        )
    )
    seconds = Seconds.since(begin)
    assert [len(c.tokens) for c in completions] == work.lengths.tolist()
    await engine.close()
    return seconds


def run_generate(work: Work) -> Seconds:
    model = AutoModelForCausalLM.from_pretrained(work.directory, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = torch.from_numpy(work.prompts.astype(np.int64))
    settings = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}
    model.generate(ids[:1], attention_mask=torch.ones_like(ids[:1]), max_new_tokens=2, **settings)
    begin = Seconds.now()
    for start in range(0, len(ids), work.slots):
        batch = ids[start : start + work.slots]
        longest = int(work.lengths[start : start + work.slots].max())
        out = model.generate(
            batch, attention_mask=torch.ones_like(batch), max_new_tokens=longest, **settings
        )
        assert out.shape[1] == ids.shape[1] + longest
    return Seconds.since(begin)


def random_model(directory: Path) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


if __name__ == "__main__":
    main()
