"""``python -m astra_stream.cli``: the command, for children that need this interpreter."""

from astra_stream.cli import main

main()
