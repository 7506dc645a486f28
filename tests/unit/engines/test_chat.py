"""Messages to token ids and back."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from astra_stream.engines.chat import ChatTokenizer
from astra_stream.errors import ConfigError
from astra_stream.records import ChatMessage

CHARACTERS = "abcdefghijklmnopqrstuvwxyz<>/|_ \n"
KEEPS_HISTORY = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CUTS_THINKING = KEEPS_HISTORY.replace(
    "{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}"
)


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def saved(directory: Path, template: str | None) -> Path:
    vocabulary = {"<unk>": 0, "<|end|>": 1}
    for character in CHARACTERS:
        vocabulary[character] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", unk_token="<unk>"
    )
    if template is not None:
        fast.chat_template = template
    fast.save_pretrained(directory)
    return directory


@pytest.fixture
def chat(tmp_path: Path) -> ChatTokenizer:
    return ChatTokenizer(saved(tmp_path, KEEPS_HISTORY))


def text_of(chat: ChatTokenizer, tokens: np.ndarray) -> str:
    return chat.decode(tokens, skip_special_tokens=False)


def test_an_opening_ends_where_the_reply_begins(chat: ChatTokenizer) -> None:
    tokens = chat.opening([ChatMessage(role="system", content="be kind"), user("hi")])
    assert tokens.dtype == np.int32
    wanted = "<|system|>\nbe kind<|end|>\n<|user|>\nhi<|end|>\n<|assistant|>\n"
    assert text_of(chat, tokens) == wanted


def test_special_tokens_are_left_out_of_decoded_replies(chat: ChatTokenizer) -> None:
    tokens = np.concatenate([chat.opening([user("hi")])[-3:], np.array([1], np.int32)])
    assert chat.decode(tokens) == "|>\n"
    assert chat.eos_ids == (1,)


def test_turns_put_together_read_as_the_template_writes_them(chat: ChatTokenizer) -> None:
    reply = [chat.opening([user("x")])[11], 1]
    whole = [*chat.opening([user("hi")]), *reply, *chat.continuation([user("more")])]
    told = [user("hi"), ChatMessage(role="assistant", content=chat.decode(np.array(reply)))]
    assert whole == chat.opening([*told, user("more")]).tolist()


def test_a_reply_without_its_terminator_gets_it_from_the_continuation(chat: ChatTokenizer) -> None:
    with_end = chat.continuation([user("more")], terminated=False)
    assert with_end.tolist() == [1, *chat.continuation([user("more")])]


def test_a_template_that_rewrites_a_reply_is_refused(tmp_path: Path) -> None:
    chat = ChatTokenizer(saved(tmp_path, CUTS_THINKING))
    assert len(chat.continuation([user("more")], reply="plain"))
    with pytest.raises(ConfigError, match="leave earlier replies as they are"):
        chat.continuation([user("more")], reply="<think>hm</think>plain")


def test_the_fingerprint_follows_the_template(tmp_path: Path, chat: ChatTokenizer) -> None:
    again = ChatTokenizer(saved(tmp_path / "again", KEEPS_HISTORY))
    other = ChatTokenizer(saved(tmp_path / "other", CUTS_THINKING))
    assert len(chat.fingerprint) == 64
    assert again.fingerprint == chat.fingerprint != other.fingerprint


def test_a_directory_without_tokenizer_or_template_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must hold a tokenizer\.json"):
        ChatTokenizer(tmp_path)
    with pytest.raises(ConfigError, match="must have one chat template"):
        ChatTokenizer(saved(tmp_path, None))
