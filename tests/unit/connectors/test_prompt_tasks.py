import json
import time
from typing import Any

import pytest

from astra_stream.connectors.prompt_sources import load_prompts
from astra_stream.errors import ConfigError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),  # reasoning-gym alone takes seconds to import
]

GYM = {
    "use": "reasoning_gym",
    "task": "chain_sum",
    "template": "{expression}=",
    "parameters": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
}


def test_a_task_gives_distinct_texts_with_what_scoring_needs() -> None:
    prompts = load_prompts(size=200, held_out=20, **GYM)
    texts = [p.messages[0].content for p in prompts]
    assert len(set(texts)) == len(prompts) == 200
    assert sum(p.split == "held_out" for p in prompts) == 20
    entry = json.loads(prompts[0].fields["entry"])
    assert texts[0] == entry["metadata"]["expression"] + "="
    assert entry["answer"] == prompts[0].answer == str(eval(texts[0][:-1]))
    assert prompts[0].fields["task"] == '"chain_sum"'


def test_a_larger_size_begins_with_the_texts_of_a_smaller_one() -> None:
    assert load_prompts(size=50, **GYM) == load_prompts(size=80, **GYM)[:50]


def test_thousands_of_items_are_made_in_seconds() -> None:
    load_prompts(size=1, **GYM)
    started_s = time.process_time()
    assert len(load_prompts(size=5500, held_out=500, **GYM)) == 5500
    assert time.process_time() - started_s < 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"task": "no_such_task"}, "must be a reasoning-gym task with its parameters: got 'no_su"),
        ({"parameters": {"terms": 3}}, "must be a reasoning-gym task with its parameters"),
        ({"template": "{sum}"}, "prompts.source.template must name only ["),
        (
            {"size": 500, "parameters": {"min_terms": 2, "max_terms": 2, "max_digits": 1}},
            "prompts.source.size must be at most the",
        ),
    ],
)
def test_a_wrong_task_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_prompts(**{"size": 5, **GYM, **changed})
    assert said in str(caught.value)
