"""Every role dies before and after each of its effects, on a log and a store in memory."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from astra_stream.processing import service as processing
from astra_stream.processing import stores
from astra_stream.records import PolicyVersion
from astra_stream.rollout import news
from astra_stream.rollout import service as rollout
from tests.crash.loop import NUM_PROMPTS, POLICY, ROLES, STEPS, TOPICS, Fuse, Loop

pytestmark = pytest.mark.timeout(60)  # a run takes half a second, on cores of its own


@pytest.fixture(autouse=True)
def _files_follow_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "FLUSH_S", 0.0)


def transaction(*records: str, first: tuple[str, ...] = ()) -> list[str]:
    """Effects of transactions that write ``records`` and may begin with each of ``first``."""
    named = itertools.product(("positions", "commit"), first or records)
    return [*(f"write {record}" for record in records), *(f"{step} {of}" for step, of in named)]


EFFECTS: dict[str, list[str]] = {
    "scheduler": [
        "fence",
        *transaction("requests", "outcomes", "changelog", first=("requests", "changelog")),
    ],
    "rollout": [
        "fence",
        *transaction(first=("alone",)),
        *transaction("trajectories", "evaluation-trajectories"),
    ],
    "pipeline": ["fence", *transaction("groups", "outcomes", "changelog")],
    "assembler": ["fence", *transaction("batches", "outcomes", "changelog")],
    "trainer": [
        "fence",
        "put weights/config.json",
        "put weights/model.safetensors",
        "put checkpoints/state.json",
        "put checkpoints/index.json",
        *transaction("weights", "outcomes", "metrics", first=("weights",)),
    ],
    "evaluator": ["fence", *transaction("requests", "evaluations", "changelog")],
}
"""Every effect of every role: a new one must be listed, and is then crashed around."""

FIRST = [(role, effect, 1) for role, effects in EFFECTS.items() for effect in effects]
LATER = [
    *[("trainer", "put weights/model.safetensors", version) for version in (3, STEPS + 1)],
    ("trainer", "put checkpoints/index.json", 2),
    *[("trainer", "commit weights", version) for version in (2, 4, STEPS + 1, STEPS + 2)],
    ("rollout", "commit alone", 3),
    ("rollout", "commit trajectories", 3),
    ("pipeline", "commit groups", 5),
    ("assembler", "commit batches", 3),
    ("assembler", "commit changelog", 20),
    ("scheduler", "commit requests", 4),
    ("evaluator", "commit changelog", 9),
]
"""Passages in the middle of a run, and, of the trainer, its last version and the final word."""


@pytest.fixture(autouse=True, scope="module")
def _short_polls() -> Iterator[None]:
    """A run's end is seen by polling: nothing else here waits."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (processing, news, rollout):
            patch.setattr(module, "POLL_S", 0.05)
        yield


def assert_whole(loop: Loop) -> None:
    """The run ended as it would have without a crash, as far as anyone can tell from outside."""
    report = loop.audit()
    assert report.violations == ()
    assert (report.finished, report.open_groups, report.dead_letters) == (True, 0, 0)
    assert (report.lost, report.duplicated) == (0, 0)
    assert report.groups == report.outcomes == NUM_PROMPTS
    announced = loop.records(TOPICS.weights(POLICY))
    assert [a.kind for a in announced] == ["snapshot"] * (len(announced) - 1) + ["final"]
    versions = [PolicyVersion(0, number) for number in range(len(announced) - 1)]
    assert [a.version for a in announced[:-1]] == versions
    evaluations = loop.records(TOPICS.evaluations)
    evaluated = list(dict.fromkeys(e.requested_version for e in evaluations))
    assert evaluated == [v for v in versions if v.number % 2 == 0 or v == versions[-1]]
    assert [e.requested_version for e in evaluations if e.final] == versions[-1:]


def crashed(role: str, directory: Path, *fuses: Fuse) -> Loop:
    loop = Loop(directory)
    loop.run({role: fuses})
    assert_whole(loop)
    return loop


def test_the_listed_effects_are_all_that_a_role_has(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.run()
    assert_whole(loop)
    for role, effects in EFFECTS.items():
        points = {f"{when} {effect}" for effect in effects for when in ("before", "after")}
        assert set(loop.passed(role)) == points, role
    assert len(loop.records(TOPICS.weights(POLICY))) == STEPS + 2


@pytest.mark.parametrize(("role", "effect", "passage"), [*FIRST, *LATER])
def test_a_role_that_dies_before_an_effect_and_then_after_it_leaves_a_whole_run(
    role: str, effect: str, passage: int, tmp_path: Path
) -> None:
    before, after = f"before {effect}", f"after {effect}"
    loop = crashed(role, tmp_path, {before: passage}, {after: 1})
    assert loop.deaths(role) == [before, after]
    assert loop.audit().orphans == ()


def fuses_of(role: str) -> st.SearchStrategy[list[Fuse]]:
    """Up to three lives that end at some passage of some point."""
    points = st.sampled_from(
        [f"{when} {effect}" for effect in EFFECTS[role] for when in ("before", "after")]
    )
    return st.lists(st.dictionaries(points, st.integers(1, 8), min_size=1, max_size=2), max_size=3)


@settings(max_examples=15, phases=(Phase.explicit, Phase.generate))
@given(
    fuses=st.fixed_dictionaries({role: fuses_of(role) for role in ROLES}),
    max_messages=st.sampled_from([1, 3, 500]),
)
def test_any_roles_that_die_anywhere_leave_a_whole_run(
    fuses: dict[str, list[Fuse]], max_messages: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    loop = Loop(tmp_path_factory.mktemp("loop"), max_messages=max_messages)
    loop.run(fuses)
    assert_whole(loop)
