import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_stream.config import RunConfig, load_run, resolved
from astra_stream.config.tables import SECONDS, Table, seconds
from astra_stream.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "arithmetic" / "run.toml"
SMALLEST = """
run = "small"
steps = 3
[prompts]
source = { use = "jsonl", path = "prompts.jsonl" }
[rollout]
environment = { use = "verifiable" }
[policies.main]
model = "model"
batch = { groups = 4 }
"""


def load(tmp_path: Path, text: str, *overrides: str) -> RunConfig:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_run(path, overrides)


def problems(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    return str(caught.value).splitlines()


def test_the_example_reads_as_it_is_written() -> None:
    config = load_run(EXAMPLE)
    assert (config.run, config.steps, config.policy_name) == ("arithmetic", 100, "main")
    assert config.policy.model == EXAMPLE.parent / "model"
    assert config.prompts.source.held_out == 500
    assert config.policy.pipeline == ()
    assert config.policy.batch.groups == 32


def test_defaults_fill_what_a_small_file_leaves_out(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST)
    assert config.rollout.engine.use == "transformers"
    assert config.policy.advantage.use == "group_relative"
    assert config.policy.loss.use == "grpo"
    assert config.rollout.episode_timeout == 600.0
    assert config.kafka is None
    assert config.evaluate is None


def test_a_plugin_table_may_leave_out_the_default_use(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST, "rollout.engine.slots=8")
    assert config.rollout.engine.use == "transformers"
    assert config.rollout.engine.parameters == {"slots": 8}


def test_an_unknown_key_is_refused_and_the_near_one_named(tmp_path: Path) -> None:
    assert problems(tmp_path, SMALLEST, "rollout.gruop_size=4") == [
        "run.toml: rollout.gruop_size is not a key. Did you mean group_size?"
    ]


def test_a_key_like_no_other_is_refused_with_those_there_are(tmp_path: Path) -> None:
    assert problems(tmp_path, SMALLEST, "policies.main.checkpoint.zzz=4") == [
        "run.toml: policies.main.checkpoint.zzz is not a key. Use one of every."
    ]


def test_every_problem_is_listed_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        SMALLEST,
        "steps=many",
        "seed=true",
        "policies.main.batch.groups=0",
        "policies.main.batch.on_slow=hurry",
        "rollout.episode_timeout=10",
        "policies.main.optimizer.betas=[1.5, 0.9]",
    )
    assert found == [
        "run.toml: seed must be a whole number: got True. Correct it.",
        "run.toml: steps must be a whole number: got 'many'. Correct it.",
        "run.toml: rollout.episode_timeout must be a duration such as '90s': got 10. "
        "Units: ms, s, m, h.",
        "run.toml: policies.main.batch.groups must be greater than or equal to 1: got 0. "
        "Correct it.",
        "run.toml: policies.main.batch.on_slow must be 'wait' or 'expire': got 'hurry'. "
        "Correct it.",
        "run.toml: policies.main.optimizer.betas must be at least 0 and below 1: "
        "got [1.5, 0.9]. Use [0.9, 0.95].",
    ]


def test_a_missing_key_is_named_with_its_help(tmp_path: Path) -> None:
    assert problems(tmp_path, SMALLEST.replace("steps = 3", "")) == [
        "run.toml: steps must be given: got nothing. Add it: versions to make."
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "temperature=0.0",
            "rollout.sampling.temperature must be above 0 while training: got 0.0. "
            "Use temperature = 1.0; greedy sampling is for evaluation.",
        ),
        (
            "top_p=0.9",
            "rollout.sampling.top_p must be 1.0 while training: got 0.9. "
            "Remove it: log-probabilities are of the whole vocabulary.",
        ),
        (
            "top_k=40",
            "rollout.sampling.top_k must be 0 while training: got 40. "
            "Remove it: log-probabilities are of the whole vocabulary.",
        ),
    ],
)
def test_sampling_that_cannot_be_trained_on_is_refused(
    tmp_path: Path, override: str, message: str
) -> None:
    found = problems(tmp_path, SMALLEST, f"rollout.sampling.{override}")
    assert found == [f"run.toml: {message}"]


def test_a_second_policy_is_refused(tmp_path: Path) -> None:
    second = '[policies.other]\nmodel = "model"\nbatch = { groups = 4 }\n'
    assert problems(tmp_path, SMALLEST + second) == [
        "run.toml: policies must have exactly one entry: got ['main', 'other']. "
        "One policy is supported."
    ]


def test_a_name_that_topics_cannot_have_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, SMALLEST, "run=My Run")[0].startswith(
        "run.toml: run must be lower-case letters, digits and '-': got 'My Run'."
    )


def test_a_secret_is_neither_taken_nor_shown(tmp_path: Path) -> None:
    kafka = '[kafka]\nbootstrap = "b:1"\npassword_env = "hunter 2"\n'
    (found,) = problems(tmp_path, SMALLEST + kafka)
    assert found.startswith("run.toml: kafka.password_env must be the name of an environment")
    assert "hunter" not in found


def test_a_table_in_the_wrong_place_is_not_printed(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, SMALLEST, 'steps={ password = "hunter2" }')
    assert found == "run.toml: steps must be a whole number: got a table. Correct it."


def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "run = \nsteps = 3")
    assert found.startswith("run.toml: must be TOML: got Invalid value (at line 1")


def test_a_missing_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be readable: got No such file.*astra new run"):
        load_run(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("seed=7", 7),
        ("seed = 7", 7),
    ],
)
def test_an_override_wins_over_the_file(tmp_path: Path, override: str, value: int) -> None:
    assert load(tmp_path, SMALLEST, override).seed == value


def test_an_override_reaches_into_lists_and_new_tables(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        SMALLEST,
        'policies.main.pipeline=[{ use = "drop_uniform" }]',
        "policies.main.pipeline.0.tolerance=0.5",
        "evaluate.every=3",
        "rollout.grace=90s",
    )
    assert config.policy.pipeline[0].parameters == {"tolerance": 0.5}
    assert config.evaluate is not None
    assert config.evaluate.every == 3
    assert config.rollout.grace == 90.0


@pytest.mark.parametrize("override", ["seed", "=3", "a..b=3", "run.name=x", "steps.0=3"])
def test_an_override_that_leads_nowhere_is_refused(tmp_path: Path, override: str) -> None:
    assert problems(tmp_path, SMALLEST, override)[0].startswith("--set")


def test_held_out_is_a_count_or_a_share(tmp_path: Path) -> None:
    assert load(tmp_path, SMALLEST, "prompts.source.held_out=0.1").prompts.source.held_out == 0.1
    assert problems(tmp_path, SMALLEST, "prompts.source.held_out=1.5") == [
        "run.toml: prompts.source.held_out must be a count or a share below 1: got 1.5. "
        "Use 500 for texts, 0.1 for a tenth."
    ]


def test_a_resolved_file_reads_back_as_the_same_run(tmp_path: Path) -> None:
    config = load_run(EXAMPLE, ["rollout.episode_timeout=250ms", "seed=3"])
    path = tmp_path / "resolved.json"
    path.write_text(json.dumps(resolved(config)))
    assert load_run(path) == config


def test_a_resolved_file_masks_secrets_and_keeps_names(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        SMALLEST,
        "rollout.environment.api_key=hunter2",
        "kafka.bootstrap=b:1",
        "kafka.password_env=NAME",
    )
    shown = resolved(config)
    assert shown["rollout"]["environment"]["api_key"] == "***"
    assert shown["kafka"]["password_env"] == "NAME"
    assert "hunter2" not in json.dumps(shown)


@given(st.floats(1e-6, 1e6), st.sampled_from(sorted(SECONDS)))
def test_a_duration_is_its_number_times_its_unit(number: float, unit: str) -> None:
    assert seconds(f"{number:.9f}{unit}") == pytest.approx(number * SECONDS[unit], rel=1e-3)


def all_tables(model: type[Table] = Table) -> list[type[Table]]:
    return [table for child in model.__subclasses__() for table in (child, *all_tables(child))]


@pytest.mark.parametrize("table", all_tables(), ids=lambda table: table.__name__)
def test_every_key_has_a_sentence_of_help(table: type[Table]) -> None:
    for name, field in table.model_fields.items():
        assert field.description, f"{table.__name__}.{name}"
