"""GRPO as a plain loop on the arithmetic example: sample, score, step, sample again.

    python examples/synchronous_grpo.py [--steps 40] [--seed 0] [--json PATH]

What ``astra run examples/arithmetic/run.toml`` computes with ``max_staleness = 0``, without a log
and without anything running beside anything: the same model, prompts, order, rewards, groups and
optimizer, read from the same run file. Nothing else of the package is used.
"""

import argparse
import json
import tomllib
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from astra_stream.algorithms.scheduling import shuffled
from astra_stream.connectors.prompt_sources import load_prompts

ARITHMETIC = Path(__file__).parent / "arithmetic"
RUN = tomllib.loads((ARITHMETIC / "run.toml").read_text())
POLICY = RUN["policies"]["main"]
GROUPS, GROUP_SIZE = POLICY["batch"]["groups"], RUN["rollout"]["group_size"]
LR, BETAS, MAX_GRAD_NORM, CLIP = POLICY["optimizer"]["lr"], (0.9, 0.95), 1.0, 0.2


class Synchronous:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.seed = seed
        directory = ARITHMETIC / POLICY["model"]
        self.tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=BETAS, weight_decay=0.0
        )
        prompts = load_prompts(**RUN["prompts"]["source"])
        self.prompts = [prompt for prompt in prompts if prompt.split == "train"]
        self.next_prompt = self.next_prompts()

    def next_prompts(self):
        epoch = 0
        while True:
            for index in shuffled(len(self.prompts), epoch, seed=self.seed):
                yield self.prompts[index]
            epoch += 1

    @torch.no_grad()
    def sample(self, prompts):
        """GROUP_SIZE samples of each prompt: tokens, what of them is text, what is the reply.

        All three are [N * GROUP_SIZE, T], beside the rewards [N, GROUP_SIZE].
        """
        texts = [
            self.tokenizer.apply_chat_template(
                [{"role": m.role, "content": m.content} for m in prompt.messages],
                add_generation_prompt=True,
                tokenize=False,
            )
            for prompt in prompts
            for _ in range(GROUP_SIZE)
        ]
        read = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        start = read.input_ids.shape[1]
        tokens = self.model.generate(
            input_ids=read.input_ids,
            attention_mask=read.attention_mask,
            max_new_tokens=RUN["rollout"]["sampling"]["max_new_tokens"],
            do_sample=True,
            temperature=RUN["rollout"]["sampling"]["temperature"],
            top_k=0,
            top_p=1.0,
        )
        reply = tokens[:, start:]
        ended = (reply == self.tokenizer.eos_token_id).long()
        is_reply = torch.zeros_like(tokens)
        is_reply[:, start:] = ended.cumsum(1) - ended == 0  # up to and with the first terminator
        is_text = is_reply.clone()
        is_text[:, :start] = read.attention_mask
        said = self.tokenizer.batch_decode(reply, skip_special_tokens=True)
        answers = [prompt.answer for prompt in prompts for _ in range(GROUP_SIZE)]
        right = [s.strip() == answer.strip() for s, answer in zip(said, answers, strict=True)]
        return tokens, is_text, is_reply, torch.tensor(right).float().view(-1, GROUP_SIZE)

    def logprobs(self, tokens, is_text):
        """[N, T - 1] of every token after the first."""
        positions = (is_text.cumsum(1) - 1).clamp(min=0)
        logits = self.model(
            input_ids=tokens, attention_mask=is_text, position_ids=positions, use_cache=False
        ).logits
        chosen = tokens[:, 1:, None]
        return logits[:, :-1].log_softmax(-1).gather(-1, chosen).squeeze(-1)

    def step(self) -> float:
        """One update; the mean reward of the samples that it was made from."""
        prompts = [next(self.next_prompt) for _ in range(GROUPS)]
        tokens, is_text, is_reply, rewards = self.sample(prompts)
        centered = rewards - rewards.mean(1, keepdim=True)
        advantages = (centered / (rewards.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        current = self.logprobs(tokens, is_text)
        ratio = (current - current.detach()).exp()  # the weights are those that sampled
        losses = -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        self.optimizer.zero_grad()
        ((losses * is_reply[:, 1:]).sum() / is_reply.sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        return float(rewards.mean())


def curve(steps: int, seed: int, *, verbose: bool = False) -> list[float]:
    """Mean reward of each step."""
    loop, rewards = Synchronous(seed), []
    for number in range(1, steps + 1):
        rewards.append(loop.step())
        if verbose:
            print(f"step {number}  reward {rewards[-1]:.3f}", flush=True)
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the curve to PATH")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rewards = curve(options.steps, options.seed, verbose=True)
    if options.json is not None:
        written = {"seed": options.seed, "rewards": rewards}
        options.json.write_text(json.dumps(written) + "\n")


if __name__ == "__main__":
    main()
