"""``astra up`` and ``astra down``: a broker and an object store that run until they are stopped."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from astra_stream.cli.connect import STACK_VARIABLE
from astra_stream.cli.options import AsJson
from astra_stream.cli.output import print_facts, print_json

Directory = Annotated[Path, Parameter(help="Directory of its data, logs and addresses.")]


def up(
    directory: Directory,
    *,
    java: Annotated[Path | None, Parameter(help="A java of version 17 or newer.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a broker and an object store in the background and say how to connect."""
    from astra_stream.local.stack import start_stack
    from astra_stream.local.supervisor import Supervisor

    directory = directory.absolute()
    supervisor = Supervisor(directory / "logs", detached=True)
    stack = start_stack(directory, java=java, supervisor=supervisor, on_progress=_say_progress)
    if as_json:
        print_json(
            {
                "bootstrap": stack.bootstrap,
                "store_url": stack.store_url,
                "endpoint": stack.s3_endpoint,
                "directory": directory,
            }
        )
        return
    facts = {
        "broker": stack.bootstrap,
        "store": stack.store_url,
        "endpoint": stack.s3_endpoint,
        "access key": stack.s3_access_key,
        "secret key": f"in {directory / 'stack.json'}",
        "use it": f"export {STACK_VARIABLE}={directory}",
        "stop it": f"astra down {directory}",
    }
    print_facts("embedded stack", facts)


def down(directory: Directory) -> None:
    """Stop the broker and the object store of a directory; their data stays."""
    from astra_stream.local.stack import stop_stack

    stopped = stop_stack(directory)
    print(f"stopped the stack of {directory}" if stopped else f"nothing runs in {directory}")


def _say_progress(done: int, total: int) -> None:
    print(f"fetching the broker: {done} of {total} jars", file=sys.stderr)
