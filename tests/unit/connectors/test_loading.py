from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.connectors import loading
from astra_stream.connectors.prompt_rows import PromptRow
from astra_stream.connectors.prompt_sources import make_prompts
from astra_stream.errors import ConfigError, FencedError
from astra_stream.log.codec import Codec
from astra_stream.log.memory import MemoryLog
from astra_stream.records import ChatMessage, Prompt

TOPIC = "demo.prompts"


def some_prompts(*texts: str) -> list[Prompt]:
    return make_prompts(
        [
            PromptRow(row=n, messages=(ChatMessage(role="user", content=text),))
            for n, text in enumerate(texts)
        ],
        dataset="sums",
    )


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(Path(__file__).resolve().parents[3] / "schemas")


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    log = MemoryLog({TOPIC: 2})
    yield log
    log.close()


def in_log(log: MemoryLog, codec: Codec) -> list[Prompt]:
    return sorted(
        (codec.decode_as(Prompt, m.value or b"") for m in log.records(TOPIC)),
        key=lambda prompt: prompt.prompt_id,
    )


def test_prompts_arrive_under_their_id(log: MemoryLog, codec: Codec) -> None:
    prompts = some_prompts("a", "b", "c")
    assert loading.load_into(log, codec, TOPIC, prompts, writer_id="demo.prompts") == 3
    assert in_log(log, codec) == prompts
    assert {m.key for m in log.records(TOPIC)} == {p.prompt_id.encode() for p in prompts}


def test_loading_again_adds_nothing(log: MemoryLog, codec: Codec) -> None:
    for written in (3, 0):
        prompts = some_prompts("a", "b", "c")
        assert loading.load_into(log, codec, TOPIC, prompts, writer_id="w") == written
    assert len(log.records(TOPIC)) == 3


def test_only_what_is_new_is_added(log: MemoryLog, codec: Codec) -> None:
    loading.load_into(log, codec, TOPIC, some_prompts("a", "b"), writer_id="w")
    prompts = some_prompts("a", "b", "c")
    assert loading.load_into(log, codec, TOPIC, prompts, writer_id="w") == 1
    assert in_log(log, codec) == prompts


def test_many_prompts_take_several_transactions(
    log: MemoryLog, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PROMPTS_PER_TRANSACTION", 2)
    prompts = some_prompts("a", "b", "c", "d", "e")
    assert loading.load_into(log, codec, TOPIC, prompts, writer_id="w") == 5
    assert in_log(log, codec) == prompts


def test_a_removed_prompt_is_written_again(log: MemoryLog, codec: Codec) -> None:
    prompts = some_prompts("a")
    loading.load_into(log, codec, TOPIC, prompts, writer_id="w")
    with log.writer("other").transaction() as txn:
        txn.write(TOPIC, prompts[0].prompt_id.encode(), None)
    assert loading.load_into(log, codec, TOPIC, prompts, writer_id="w") == 1


def test_a_second_load_fences_the_first(log: MemoryLog) -> None:
    first = log.writer("w")
    log.writer("w")
    with pytest.raises(FencedError), first.transaction() as txn:
        txn.write(TOPIC, b"k", b"v")


def test_a_missing_topic_is_refused(codec: Codec) -> None:
    with pytest.raises(ConfigError, match="astra topics apply"):
        loading.load_into(MemoryLog(), codec, TOPIC, some_prompts("a"), writer_id="w")


@given(st.sets(st.sampled_from("abcdefgh"), min_size=1), st.sets(st.sampled_from("abcdefgh")))
def test_missing_prompts_are_the_difference_in_order(texts: set[str], known: set[str]) -> None:
    prompts = some_prompts(*sorted(texts))
    ids = [p.prompt_id for p in prompts if p.messages[0].content in known]
    missing = loading.missing_prompts([*prompts, *prompts], ids)
    assert [p.messages[0].content for p in missing] == sorted(texts - known)
