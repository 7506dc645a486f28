"""``astra prompts load``: from the run file's source into the log."""

from typing import Annotated

from cyclopts import App, Parameter

from astra_stream.cli.options import AsJson, Overrides, RunFile, StackDirectory
from astra_stream.cli.output import print_facts, print_json

app = App(name="prompts", help="Load prompts into the log.")


@app.command
def load(
    run_file: RunFile,
    *,
    dry_run: Annotated[
        bool, Parameter(help="Read the source; write nothing.", negative=())
    ] = False,
    overrides: Overrides = (),
    stack: StackDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Write the prompts that the log lacks; loading the same source again adds nothing."""
    from astra_stream.cli.binding import RunPlugins
    from astra_stream.config import load_run

    config = load_run(run_file, overrides)
    prompts = RunPlugins(config, run_file.name).prompts()
    facts: dict[str, object] = {
        "prompts": len(prompts),
        "train": sum(prompt.split == "train" for prompt in prompts),
        "held_out": sum(prompt.split == "held_out" for prompt in prompts),
    }
    if not dry_run:
        from astra_stream.cli.connect import find_stack, open_log
        from astra_stream.connectors.loading import load_into
        from astra_stream.declarations import declared
        from astra_stream.log.codec import Codec
        from astra_stream.log.names import TopicNames

        names = TopicNames(config.run)
        log = open_log(config, find_stack(stack))
        try:
            facts["written"] = load_into(
                log,
                Codec(declared("schemas")),
                names.prompts,
                prompts,
                writer_id=names.group("prompts"),
            )
        finally:
            log.close()
    if as_json:
        print_json(facts)
    else:
        print_facts(f"{config.run}.prompts", facts)
