"""Which commands there are; a command's file is imported when it is chosen, not before."""

from typing import NamedTuple

from cyclopts import App, Group

from astra_stream.errors import ConfigError


class Command(NamedTuple):
    """One command of ``astra``."""

    name: str
    where: str
    """``module:function`` or ``module:app`` below ``astra_stream.cli``."""
    help: str


RUN = (
    Command("run", "run:run", "Start everything on this machine, train, and report."),
    Command("check", "check:check", "Validate a run file and say what would happen."),
    Command("new", "new:app", "Write a run file for your own model and data."),
    Command("top", "top:top", "Watch a run."),
    Command("report", "report:report", "Show what a run came to."),
    Command("chaos", "chaos:chaos", "Train while processes are killed, and audit the run."),
    Command("audit", "audit:audit", "Prove that every sample of a run has one outcome."),
    Command("sweep", "sweep:sweep", "Find objects that nothing names, and delete them."),
)
SERVICES = (
    Command("schedule", "services:schedule", "Run the scheduler."),
    Command("rollout", "services:rollout", "Run a rollout worker."),
    Command("process", "services:process", "Run the pipeline and the assembler."),
    Command("train", "services:train", "Run the trainer."),
    Command("evaluate", "services:evaluate", "Run the evaluator."),
)
PARTS = (
    Command("up", "stack:up", "Start a broker and an object store on this machine."),
    Command("down", "stack:down", "Stop them."),
    Command("topics", "topics:app", "Plan and make a run's topics."),
    Command("prompts", "prompts:app", "Load prompts into the log."),
    Command("dead-letters", "dead_letters:app", "List, show and replay what was not processed."),
)
EXIT_CODES = (
    "Exit codes: 0 done, 1 a bug, 2 a mistake in what was asked, 75 try again, 130 interrupted."
)


def make_application() -> App:
    """The command line, with nothing but names and help loaded."""
    app = App(
        name="astra",
        help="Reinforcement learning for language models in which the log is the system.",
        help_epilogue=EXIT_CODES,
        version=_version,
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for title, commands in (("Runs", RUN), ("Services", SERVICES), ("Parts", PARTS)):
        group = Group.create_ordered(title)
        for command in commands:
            where = f"astra_stream.cli.{command.where}"
            app.command(where, name=command.name, help=command.help, group=group)
    return app


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("astra-stream")
    except PackageNotFoundError:
        raise ConfigError(
            "astra-stream must be installed to have a version: got none. Run: make install."
        ) from None
