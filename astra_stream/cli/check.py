"""``astra check``: is a run file right, what would happen, and how long would it take."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astra_stream.cli.options import AsJson, Overrides, RunFile
from astra_stream.cli.output import print_facts, print_json

if TYPE_CHECKING:
    from astra_stream.cli.validation import Expectation
    from astra_stream.config import RunConfig

MIB = 1024 * 1024
SECONDS_PER_MINUTE = 60


def check(run_file: RunFile, *, overrides: Overrides = (), as_json: AsJson = False) -> None:
    """Validate a run file, its plugins, prompts and model, and say what would happen."""
    from astra_stream.cli.topics import run_topics
    from astra_stream.cli.validation import validate_run
    from astra_stream.config import load_run

    config = load_run(run_file, overrides)
    expected, _ = validate_run(config, file=run_file.name)
    former = former_summary(config, [Path("runs"), config.directory / "runs"])
    topics = [topic.name for topic in run_topics(config)]
    if as_json:
        estimated_s = former[1] * expected.steps if former else None
        facts = dataclasses.asdict(expected) | {"estimated_s": estimated_s, "topics": topics}
        print_json(facts)
    else:
        shown = _shown(config, expected) | {"time": _time(expected, former)}
        print_facts(f"{config.run}: {run_file}", shown | {"topics": "\n".join(topics)})


def _shown(config: "RunConfig", expected: "Expectation") -> dict[str, Any]:
    steps = str(expected.steps)
    if expected.steps < expected.steps_asked:
        steps += f" at most: prompts end before the {expected.steps_asked} asked for"
    return {
        "prompts to train on": expected.num_train,
        "prompts held out": expected.num_held_out,
        "longest prompt": f"{expected.longest_prompt_tokens} tokens",
        "groups in a step": expected.groups_per_step,
        "samples in a step": expected.samples_per_step,
        "steps": steps,
        "samples in all": expected.steps * expected.samples_per_step,
        "model": f"{expected.model.num_parameters:,} parameters, "
        f"context of {expected.model.context_tokens} tokens",
        "memory": f"about {_mib(expected.model.trainer_bytes)} for the trainer and "
        f"{_mib(expected.model.worker_bytes)} for each of {config.rollout.workers} workers; "
        "libraries, activations and caches come on top",
        "broker": config.kafka.bootstrap if config.kafka else "embedded",
        "store": config.store.url if config.store else "embedded",
    }


def _time(expected: "Expectation", former: tuple[Path, float] | None) -> str:
    if former is None:
        return "unknown: no former run on this machine to go by"
    path, step_s = former
    about = step_s * expected.steps / SECONDS_PER_MINUTE
    return f"about {about:.1f} minutes, at {step_s:.2f} s a step as in {path}"


def former_summary(config: "RunConfig", places: list[Path]) -> tuple[Path, float] | None:
    """The newest summary of a run of the same name, and its seconds a step."""
    found = {p.resolve() for place in places for p in place.glob(f"{config.run}-*/summary.json")}
    for path in sorted(found, key=lambda p: p.stat().st_mtime, reverse=True):
        summary = json.loads(path.read_text(encoding="utf-8"))
        if summary.get("steps"):
            return path, summary["wall_s"] / summary["steps"]
    return None


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f} MiB"
