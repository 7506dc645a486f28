"""What ``astra run`` is to its children: a supervisor whose child does not stop when it is told."""

import os
import sys
from pathlib import Path

from astra_stream.cli.signals import interrupts
from astra_stream.local.supervisor import Service, Supervisor

STUBBORN = "trap '' TERM; echo up > $0; while :; do sleep 600; done"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(directory: Path) -> None:
    is_up = directory / "is_up"
    os.mkfifo(is_up)
    stubborn = Service(name="stubborn", argv=("/bin/sh", "-c", STUBBORN, str(is_up)))
    with interrupts(), Supervisor(directory, grace_s=600.0) as supervisor:
        try:
            say(str(supervisor.start(stubborn)))
            is_up.read_text()
            say("working")
            supervisor.wait()
        except KeyboardInterrupt:
            say("stopping")


main(Path(sys.argv[1]))
