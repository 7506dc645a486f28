"""Texts that end a reply, looked for in the last few sampled tokens of the rows that have any."""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from astra_stream.engines.sequence_table import SequenceTable
from astra_stream.errors import ConfigError

MARGIN_TOKENS = 4
"""Tokens looked at beyond the longest stop text's bytes: those of a character cut in two."""


class StopTexts:
    """Says which rows have just written one of their stop texts.

    Args:
        directory: Directory of the model, with its ``tokenizer.json``; read on first use.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "tokenizer.json"
        self._tokenizer: Tokenizer | None = None

    def require(self, texts: tuple[str, ...]) -> None:
        """Make sure that stop texts can be looked for.

        Raises:
            ConfigError: There are some, and no tokenizer.
        """
        if texts and self._tokenizer is None:
            if not self._path.is_file():
                raise ConfigError(
                    f"stop texts must have a tokenizer: got none at {str(self._path)!r}. Save the "
                    "tokenizer beside the model, or leave out the stop texts."
                )
            self._tokenizer = Tokenizer.from_file(str(self._path))

    def ended_rows(self, table: SequenceTable) -> Iterator[int]:
        """Rows whose newest token completes one of their stop texts."""
        if self._tokenizer is None:
            return
        for row, request in enumerate(table.requests):
            texts = request.sampling.stop
            if not texts:
                continue
            count = max(len(text.encode()) for text in texts) + MARGIN_TOKENS
            tail = self._tokenizer.decode(table.sampled(row)[-count:].tolist())
            if any(text in tail for text in texts):
                yield row
