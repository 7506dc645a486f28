import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.connectors.prompt_rows import PromptRow
from astra_stream.connectors.prompt_sources import (
    content_hash,
    dataset_name,
    held_out_texts,
    load_prompts,
    make_prompts,
)
from astra_stream.errors import ConfigError
from astra_stream.records import ChatMessage

ROWS = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(10)]


def write_lines(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(number: int, text: str, answer: str = "") -> PromptRow:
    return PromptRow(row=number, messages=(ChatMessage(role="user", content=text),), answer=answer)


def message_of(path: Path, **parameters: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_prompts(use=path.suffix[1:], path=path, **parameters)
    return str(caught.value)


def test_a_line_becomes_a_prompt(tmp_path: Path) -> None:
    prompt = load_prompts(use="jsonl", path=write_lines(tmp_path, *ROWS))[3]
    assert prompt.prompt_id == f"sums/3/{content_hash('3 + 1 =', '4')}"
    assert prompt.messages == (ChatMessage(role="user", content="3 + 1 ="),)
    assert (prompt.answer, prompt.split, prompt.dataset) == ("4", "train", "sums")
    assert prompt.environment == ""


def test_columns_messages_fields_and_numbers_are_read(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = write_lines(tmp_path, {"chat": chat, "value": 4, "hint": [1, 2], "level": "hard"})
    (prompt,) = load_prompts(
        use="jsonl",
        path=path,
        prompt="chat",
        answer="value",
        system="Be brief.",
        fields=("hint",),
        features=("level",),
    )
    assert [m.role for m in prompt.messages] == ["system", "user", "assistant"]
    assert prompt.answer == "4"
    assert prompt.fields == {"hint": "[1, 2]"}
    assert prompt.features == {"level": '"hard"'}


def test_a_source_without_answers_is_read(tmp_path: Path) -> None:
    (prompt,) = load_prompts(use="jsonl", path=write_lines(tmp_path, {"prompt": "x"}), answer="")
    assert prompt.answer == ""


def test_csv_and_parquet_give_the_prompts_that_jsonl_gives(tmp_path: Path) -> None:
    wanted = load_prompts(use="jsonl", path=write_lines(tmp_path, *ROWS), held_out=3)
    table = tmp_path / "sums.csv"
    table.write_text("prompt,answer\n" + "".join(f"{r['prompt']},{r['answer']}\n" for r in ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "sums.parquet")
    assert load_prompts(use="csv", path=table, held_out=3) == wanted
    assert load_prompts(use="parquet", path=tmp_path / "sums.parquet", held_out=3) == wanted


def save_to_disk(directory: Path, rows: list[dict[str, Any]]) -> None:
    """As the datasets package lays a data set out."""
    directory.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    name = "data-00000-of-00001.arrow"
    with pa.ipc.new_stream(str(directory / name), table.schema) as stream:
        stream.write_table(table)
    (directory / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))


def test_a_datasets_directory_is_read_whole_or_by_split(tmp_path: Path) -> None:
    wanted = load_prompts(use="jsonl", path=write_lines(tmp_path, *ROWS))
    save_to_disk(tmp_path / "one" / "sums", ROWS)
    save_to_disk(tmp_path / "two" / "sums" / "test", ROWS)
    (tmp_path / "two" / "sums" / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert load_prompts(use="datasets", path=tmp_path / "one" / "sums") == wanted
    assert load_prompts(use="datasets", path=tmp_path / "two" / "sums", split="test") == wanted
    with pytest.raises(ConfigError, match=r"split must be one of \['test'\]: got 'train'"):
        load_prompts(use="datasets", path=tmp_path / "two" / "sums")


def test_a_directory_that_is_no_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must have a state\.json: got none"):
        load_prompts(use="datasets", path=tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert message_of(write_lines(tmp_path)) == (
        "prompt file 'sums' must have at least one prompt: got none. Add prompts to it."
    )


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert message_of(tmp_path / "none.jsonl") == (
        f"prompt file '{tmp_path}/none.jsonl' must exist: got none there. "
        "Correct prompts.source.path."
    )


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path, *ROWS[:2])
    path.write_text(path.read_text() + "{broken\n")
    assert message_of(path).startswith("sums.jsonl: line 3 must be JSON: got Expecting property")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"prompt": "x"}, "must have the column 'answer': got ['prompt']"),
        ({"prompt": "x", "answer": None}, "must have the column 'answer'"),
        ({"prompt": "", "answer": "x"}, "must have text in 'prompt': got none"),
        ({"prompt": 3, "answer": "x"}, "must have text or a list of {role, content} in 'prompt'"),
        ({"prompt": [{"role": "user"}], "answer": "x"}, "must have text or a list of {role,"),
        ([1, 2], "must be a JSON object: got list"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: Any, said: str) -> None:
    found = message_of(write_lines(tmp_path, ROWS[0], line))
    assert found.startswith(f"sums.jsonl: line 2 {said}")


def test_a_csv_row_with_too_many_values_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("prompt,answer\na,b\na,b,c\n")
    assert message_of(path).startswith("sums.csv: row 2 must have 2 values: got more")


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n')
    assert message_of(path).startswith("sums.jsonl: must be UTF-8")


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be one of .*: got 'xml'"):
        load_prompts(use="xml")


def test_equal_rows_are_kept_once_and_the_first_stays() -> None:
    prompts = make_prompts([row(0, "a", "1"), row(1, "b"), row(2, "a", "1")], dataset="d")
    assert [p.prompt_id.split("/")[1] for p in prompts] == ["0", "1"]


@given(st.lists(st.tuples(st.text("ab", min_size=1), st.text("xy")), min_size=2), st.floats(0, 0.9))
def test_no_text_is_in_both_splits(rows: list[tuple[str, str]], share: float) -> None:
    texts = {text for text, _ in rows}
    if round(share * len(texts)) >= len(texts):
        return
    prompts = make_prompts(
        [row(i, text, answer) for i, (text, answer) in enumerate(rows)],
        dataset="d",
        held_out=share,
    )
    split = {
        name: {p.messages[0].content for p in prompts if p.split == name}
        for name in ("train", "held_out")
    }
    assert not split["train"] & split["held_out"]
    assert split["train"] | split["held_out"] == texts
    assert len(split["held_out"]) == round(share * len(texts))
    assert len({p.prompt_id for p in prompts}) == len(prompts)


def test_the_texts_with_the_smallest_digest_are_held_out() -> None:
    texts = {f"text {n}" for n in range(20)}
    by_digest = sorted(texts, key=lambda t: hashlib.sha256(t.encode()).hexdigest())
    assert held_out_texts(texts, 5) == set(by_digest[:5])
    assert held_out_texts(texts, 0.25) == set(by_digest[:5])


def test_holding_everything_out_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"held_out must be below the 2 distinct texts: got 2"):
        held_out_texts({"a", "b"}, 2)


def test_a_data_set_is_named_after_its_task_or_file() -> None:
    assert dataset_name({"task": "chain_sum"}) == "chain_sum"
    assert dataset_name({"path": Path("/data/my.sums.jsonl")}) == "my"
    assert dataset_name({"path": "/data/sums/"}) == "sums"
    assert dataset_name({}) == "prompts"
