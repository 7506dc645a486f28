"""A model's tokenizer and chat template: messages to token ids, once; ids to text for judging.

Token ids are never decoded and encoded again: a further turn is encoded alone, as what the template
writes between a reply and the next one.
"""

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from astra_stream.engines.model_directory import terminator_ids
from astra_stream.errors import ConfigError
from astra_stream.records import ChatMessage

PROBE = (ChatMessage(role="user", content="question"),)
"""Conversation before the reply whose continuation is asked for; what it says does not matter."""

OPENINGS_KEPT = 256


class ChatTokenizer:
    """Tokenizer and chat template of a Hugging Face directory.

    Args:
        directory: Holds ``tokenizer.json`` and a chat template.

    Raises:
        ConfigError: One of them is missing.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"model directory must hold a tokenizer.json: got {str(directory)!r}. Save the "
                "tokenizer there."
            )
        self._tokenizer = _load_tokenizer(directory)
        template = self._tokenizer.chat_template
        if not isinstance(template, str):
            raise ConfigError(
                f"tokenizer must have one chat template: got {type(template).__name__} in "
                f"{str(directory)!r}. Save a chat_template.jinja beside it."
            )
        self._eos_ids = terminator_ids(directory) or (self._tokenizer.eos_token_id,)
        digest = hashlib.sha256(path.read_bytes())
        digest.update(template.encode())
        self._fingerprint = digest.hexdigest()
        # A group's samples begin alike: most openings were asked for a moment ago.
        self._cached_opening = functools.lru_cache(OPENINGS_KEPT)(self._encode_opening)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of ``tokenizer.json`` and the chat template, 64 hex digits."""
        return self._fingerprint

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Token ids that end a reply."""
        return self._eos_ids

    def opening(self, messages: Sequence[ChatMessage]) -> np.ndarray:
        """What the policy reads first.

        Args:
            messages: The conversation, oldest first; at least one.

        Returns:
            [T] int32 token ids, ending where the reply begins.
        """
        return self._cached_opening(tuple(messages))

    def _encode_opening(self, messages: tuple[ChatMessage, ...]) -> np.ndarray:
        tokens = self._encode(self._render(messages))
        tokens.flags.writeable = False
        return tokens

    def continuation(
        self,
        messages: Sequence[ChatMessage],
        *,
        reply: str = "answer",
        terminated: bool = True,
    ) -> np.ndarray:
        """What stands between a reply and the next one.

        Args:
            messages: What was said since the reply, oldest first; at least one.
            reply: The reply's text, which the template must leave as it is.
            terminated: Whether the reply's tokens end with the terminator.

        Returns:
            [T] int32 token ids that follow the reply's own.

        Raises:
            ConfigError: The template changes earlier replies, so the tokens so far would not be
                what the model is shown.
        """
        text = reply.strip()
        before = self._render(PROBE) + text
        whole = self._render((*PROBE, ChatMessage(role="assistant", content=text), *messages))
        if not whole.startswith(before):
            raise ConfigError(
                "chat template must leave earlier replies as they are: got another text for a "
                f"reply of {len(text)} characters. Use a template that keeps history, or an "
                "environment of one turn."
            )
        rest = whole[len(before) :]
        if terminated:
            rest = self._without_terminator(rest)
        return self._encode(rest)

    def decode(self, tokens: np.ndarray, *, skip_special_tokens: bool = True) -> str:
        """Text of ``tokens`` [T], for people and judges only."""
        return self._tokenizer.decode(
            tokens.tolist(),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )

    def _render(self, messages: Sequence[ChatMessage]) -> str:
        conversation = [{"role": m.role, "content": m.content} for m in messages]
        return self._tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=False
        )

    def _encode(self, text: str) -> np.ndarray:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.array(ids, dtype=np.int32)

    def _without_terminator(self, text: str) -> str:
        for token in self._tokenizer.convert_ids_to_tokens(list(self._eos_ids)):
            if text.startswith(token):
                return text[len(token) :]
        return text


def _load_tokenizer(directory: Path) -> Any:
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)
