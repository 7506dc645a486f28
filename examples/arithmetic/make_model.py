"""Make the example's starting checkpoint: a character model that has seen a careless pupil's sums.

    python examples/arithmetic/make_model.py

It learns from wrong labels on purpose. Most answers that it is shown are wrong: where a sum
carries, the pupil forgets the carry more often than not; elsewhere the answer is often another
sum's. So the skill is in the model and greedy decoding still fails on most carries: what
reinforcement learning has to find is in reach of a few samples. No text of the run's held-out split
is used.
"""

import argparse
import random
import time
import tomllib
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
PAD, EOS = 0, 2
NO_LABEL = -100
CHARACTERS = "0123456789+-*/=()<>?:., \nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] | replace(' ', '') }}"
    "{% else %}{{ m['content'] }}<eos>{% endif %}{% endfor %}"
)
RIGHT_WITH_CARRY, FORGETS_CARRY, RIGHT_WITHOUT = 0.38, 0.45, 0.42


def character_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"<pad>": PAD, "<bos>": 1, "<eos>": EOS, "<unk>": 3}
    for character in CHARACTERS:
        vocabulary.setdefault(character, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def character_model(vocabulary_size: int) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary_size,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            bos_token_id=1,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
    )


def carries(a: int, sign: int, b: int) -> bool:
    return a % 10 + b % 10 > 9 if sign > 0 else abs(a) % 10 < b % 10


def careless_answer(a: int, sign: int, b: int, rng: random.Random) -> int:
    """The right answer with a probability under one half, else a slip a pupil might make."""
    right, draw = a + sign * b, rng.random()
    if carries(a, sign, b):
        if draw < RIGHT_WITH_CARRY:
            return right
        if draw < RIGHT_WITH_CARRY + FORGETS_CARRY:
            return right - 10 * sign
    elif draw < RIGHT_WITHOUT:
        return right
    other_a, other_b = rng.randint(10, 99), rng.randint(10, 99)
    return other_a + sign * other_b


def draw_sum(rng: random.Random, held_out: set[str]) -> tuple[int, int, int]:
    """A sum of two numbers of one or of two digits that is not held out."""
    while True:
        low, high = (1, 9) if rng.random() < 0.1 else (10, 99)
        a, b, sign = rng.randint(low, high), rng.randint(low, high), rng.choice((1, -1))
        if f"{a} {'+' if sign > 0 else '-'} {b}=" not in held_out:
            return a, sign, b


def batch_of_sums(tokenizer, rng: random.Random, held_out: set[str], size: int):
    """Token ids and labels, both [size, T]; labels are NO_LABEL outside the answer."""
    rows = []
    for _ in range(size):
        a, sign, b = draw_sum(rng, held_out)
        prompt = tokenizer(f"{a}{'+' if sign > 0 else '-'}{b}=").input_ids
        answer = [*tokenizer(str(careless_answer(a, sign, b, rng))).input_ids, EOS]
        rows.append((prompt, answer))
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((size, width), PAD)
    labels = torch.full((size, width), NO_LABEL)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def held_out_texts() -> set[str]:
    from astra_stream.connectors.prompt_sources import load_prompts

    run = tomllib.loads((HERE / "run.toml").read_text())
    prompts = load_prompts(**run["prompts"]["source"])
    return {p.messages[-1].content for p in prompts if p.split == "held_out"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "model")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    rng = random.Random(arguments.seed)
    tokenizer = character_tokenizer()
    model = character_model(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=arguments.steps, pct_start=0.05
    )
    held_out = held_out_texts()
    started = time.monotonic()
    for step in range(1, arguments.steps + 1):
        ids, labels = batch_of_sums(tokenizer, rng, held_out, arguments.batch)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            elapsed_s = time.monotonic() - started
            print(f"step {step}  loss {loss.item():.3f}  {elapsed_s:.0f} s", flush=True)
    model.to(torch.bfloat16).save_pretrained(arguments.out)
    tokenizer.save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
