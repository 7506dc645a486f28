"""``astra new run``: a run file, prompts and a reward function to change into one's own."""

import json
import re
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from astra_stream.errors import ConfigError

app = App(name="new", help="Write a run file for your own model and data.")

TEMPLATES = Path(__file__).parent / "templates"
FILES = ("run.toml", "prompts.jsonl", "reward.py")


@app.command(name="run")
def new_run(
    directory: Annotated[Path, Parameter(help="Where to write; made if it is not there.")],
    *,
    model: Annotated[
        Path | None, Parameter(help="Hugging Face model directory to start from.")
    ] = None,
) -> None:
    """Write run.toml, prompts.jsonl and reward.py; with ``--model`` the run starts as it is."""
    from astra_stream.cli.model_facts import read_model_facts

    taken = [name for name in FILES if (directory / name).exists()]
    if taken:
        raise ConfigError(
            f"directory {str(directory)!r} must have no {taken[0]}: got one. "
            "Name another directory, or remove the file."
        )
    if model is not None:
        read_model_facts(model, key="--model")
    written = write_run(directory, model)
    print(f"wrote {', '.join(str(path) for path in written)}")
    if model is None:
        print(f"save a model in {directory / 'model'}, or name one in run.toml; then")
    print(f"  astra check {directory / 'run.toml'}\n  astra run {directory / 'run.toml'}")


def write_run(directory: Path, model: Path | None) -> list[Path]:
    """Write the files and return their paths; the model is named by its absolute path."""
    name = re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-") or "run"
    path = "model" if model is None else str(model.resolve())
    values = {"@RUN@": name, "@MODEL@": json.dumps(path, ensure_ascii=False)}
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for file in FILES:
        text = (TEMPLATES / f"{file}.tmpl").read_text(encoding="utf-8")
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        written.append(directory / file)
        written[-1].write_text(text, encoding="utf-8")
    return written
