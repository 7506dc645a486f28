"""A service that can be stopped between the positions of a transaction and its commit.

    python -m astra_stream.cli.holdable FILE COMMAND [ARGUMENT...]

While FILE exists, the next transaction that has sent its positions removes it and stops the process
as SIGSTOP does. ``astra chaos`` starts its services so: no signal from outside hits that moment.
"""

import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from astra_stream.cli import run_command
from astra_stream.log import kafka_writer
from astra_stream.log.interface import Committed, Partition, Reader


def main() -> None:
    """Run the command."""
    file, *command = sys.argv[1:]

    class HoldableTransaction(kafka_writer.KafkaTransaction):
        @override
        def commit_offsets(self, reader: Reader, positions: Mapping[Partition, Committed]) -> None:
            super().commit_offsets(reader, positions)
            hold(Path(file))

    kafka_writer.KafkaTransaction = HoldableTransaction
    sys.exit(run_command(command))


def hold(file: Path) -> None:
    """Stop this process where the file asks for it, until it gets SIGCONT."""
    try:
        file.unlink()
    except FileNotFoundError:
        return
    # To this thread: sent to the process, another may take it, and this one goes on.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


if __name__ == "__main__":
    main()
