"""What nothing names, and what of it nothing can name any more."""

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from astra_stream.analysis.orphans import FOREIGN, PENDING, UNPLACED, YOUNG, Orphan, orphans
from astra_stream.records import ObjectEntry, PolicyVersion, WeightAnnouncement
from astra_stream.store.blobs import StoredObject

NOW_S = 10_000.0
GRACE_S = 3600.0
OLD_S, YOUNG_S = NOW_S - GRACE_S, NOW_S - GRACE_S + 1.0


def announce(
    number: int, *keys: str, lineage: int = 0, kind: str = "snapshot", checkpoint: str = ""
) -> WeightAnnouncement:
    entries = (
        ObjectEntry(key=key, size_bytes=1, sha256="0" * 64, raw_size_bytes=1) for key in keys
    )
    return WeightAnnouncement(
        policy="main",
        version=PolicyVersion(lineage, number),
        kind=kind,
        root_hash="0" * 64,
        model_fingerprint="0" * 64,
        tensors=(),
        objects=tuple(entries),
        checkpoint=checkpoint,
    )


def found(
    keys: Sequence[str],
    announced: Sequence[WeightAnnouncement],
    *,
    modified_s: float = OLD_S,
    in_checkpoints: Sequence[str] = (),
    grace_s: float = GRACE_S,
) -> list[Orphan]:
    return orphans(
        [StoredObject(key, 7, modified_s) for key in keys],
        announced,
        in_checkpoints=in_checkpoints,
        policy="main",
        now_s=NOW_S,
        grace_s=grace_s,
    )


def kept(key: str, announced: Sequence[WeightAnnouncement], **changes: float) -> str:
    (orphan,) = found([key], announced, **changes)
    return orphan.kept


def weights(number: int, *, lineage: int = 0, policy: str = "main") -> str:
    return f"weights/{policy}/{lineage}/{number:08d}/model-0123.safetensors"


def checkpoint(number: int, name: str = "index-0123.json") -> str:
    return f"checkpoints/main/0/{number:08d}/{name}"


def test_what_is_named_is_no_orphan():
    keys = [weights(1), "weights/main/files/config-1.json", checkpoint(1), checkpoint(1, "state")]
    announced = [announce(1, *keys[:2], checkpoint=keys[2]), announce(5)]
    assert found(keys, announced, in_checkpoints=keys[2:]) == []


def test_a_superseded_checkpoint_is_named_and_so_no_orphan():
    announced = [announce(n, checkpoint=checkpoint(n)) for n in (3, 6)]
    assert found([checkpoint(3), checkpoint(6)], announced) == []


def test_an_orphan_says_its_size_and_age():
    (orphan,) = found([weights(1)], [announce(1)])
    assert orphan == Orphan(key=weights(1), size_bytes=7, age_s=GRACE_S, kept="")


def test_a_version_that_is_passed_may_go_and_one_that_is_not_may_not():
    assert [kept(weights(n), [announce(5)]) for n in (4, 5, 6)] == ["", "", PENDING]
    assert [kept(checkpoint(n), [announce(5)]) for n in (4, 5, 6)] == ["", "", PENDING]
    assert kept(weights(0), []) == PENDING


def test_versions_of_a_lineage_that_was_left_are_passed():
    announced = [announce(5), announce(5, lineage=1)]
    assert kept(weights(6), announced) == ""
    assert kept(weights(6, lineage=1), announced) == PENDING


def test_nothing_younger_than_the_grace_period_goes():
    assert kept(weights(1), [announce(5)], modified_s=YOUNG_S) == YOUNG
    assert kept(weights(1), [announce(5), announce(5, kind="final")], modified_s=YOUNG_S) == YOUNG


def test_what_belongs_to_no_version_waits_for_the_end_of_the_run():
    assert kept("weights/main/files/config-1.json", [announce(5)]) == UNPLACED
    assert kept("weights/main/files/config-1.json", [announce(5), announce(5, kind="final")]) == ""


def test_after_the_final_version_nothing_is_pending():
    assert kept(weights(6), [announce(5), announce(5, kind="final")]) == ""


@pytest.mark.parametrize(
    "key",
    ["notes.txt", "claims/0123", weights(1, policy="other"), "weights/main", "weights//0/1/a"],
)
def test_what_this_policy_did_not_write_stays(key: str):
    assert kept(key, [announce(5), announce(5, kind="final")]) == FOREIGN


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.floats(0, 2 * NOW_S)), max_size=9),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=4),
    st.booleans(),
    st.floats(0, NOW_S),
)
def test_what_goes_is_unnamed_old_and_past(stored, announced, is_over, grace_s):
    objects = {weights(n, lineage=li): at_s for li, n, at_s in stored}
    known = [
        announce(n, *([weights(n, lineage=li)] if names else []), lineage=li)
        for li, n, names in announced
    ]
    final = [dataclasses.replace(known[-1], kind="final")] if is_over and known else []
    named = {entry.key for one in known for entry in one.objects}
    everything = orphans(
        [StoredObject(key, 1, at_s) for key, at_s in objects.items()],
        [*known, *final],
        in_checkpoints=(),
        policy="main",
        now_s=NOW_S,
        grace_s=grace_s,
    )
    assert [one.key for one in everything] == [key for key in objects if key not in named]
    newest = max((one.version for one in known), default=PolicyVersion(-1, -1))
    for one in everything:
        lineage, number = (int(part) for part in one.key.split("/")[2:4])
        if not one.kept:
            assert NOW_S - objects[one.key] >= grace_s
            assert final or PolicyVersion(lineage, number) <= newest


class TrainersAndSweeps(RuleBasedStateMachine):
    """Trainers that die anywhere and are followed by others, beside a sweep without any grace.

    A trainer's step may come out as before or not; a sweep lists, reads and deletes while trainers
    go on. What an announcement names must be there when it is made and ever after.
    """

    @initialize()
    def begin(self) -> None:
        self.objects: dict[str, float] = {}
        self.announced: list[WeightAnnouncement] = []
        self.uploaded: WeightAnnouncement | None = None
        self.listed: list[StoredObject] | None = None
        self.doomed: list[str] = []
        self.now_s = 0.0

    @property
    def next(self) -> PolicyVersion:
        if not self.announced:
            return PolicyVersion(0, 0)
        return max(one.version for one in self.announced).next()

    @precondition(lambda self: self.uploaded is None)
    @rule(digest=st.sampled_from("ab"), opens=st.booleans())
    def upload(self, digest: str, *, opens: bool) -> None:
        version = self.next
        if opens and self.announced:
            version = PolicyVersion(version.lineage + 1, version.number - 1)
        folder = f"{version.lineage}/{version.number:08d}"
        keys = [f"weights/main/{folder}/model-{digest}", f"checkpoints/main/{folder}/{digest}"]
        for key in [*keys, f"weights/main/files/config-{digest}"]:
            self.objects.setdefault(key, self.now_s)
        files = f"weights/main/files/config-{digest}"
        self.uploaded = announce(
            version.number, keys[0], files, lineage=version.lineage, checkpoint=keys[1]
        )

    @precondition(lambda self: self.uploaded is not None)
    @rule()
    def die(self) -> None:
        self.uploaded = None

    @precondition(lambda self: self.uploaded is not None)
    @rule()
    def announce(self) -> None:
        self.announced.append(self.uploaded)
        self.uploaded = None

    @rule(passed_s=st.sampled_from([0.0, 1.0]))
    def list_objects(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.listed = [StoredObject(key, 1, at_s) for key, at_s in self.objects.items()]

    @precondition(lambda self: self.listed is not None)
    @rule()
    def read_and_decide(self) -> None:
        found = orphans(
            self.listed,
            list(self.announced),
            in_checkpoints=(),
            policy="main",
            now_s=self.now_s,
            grace_s=0.0,
        )
        self.doomed = [one.key for one in found if not one.kept]
        self.listed = None

    @precondition(lambda self: self.doomed)
    @rule()
    def delete_one(self) -> None:
        self.objects.pop(self.doomed.pop(), None)

    @invariant()
    def what_is_announced_is_there(self) -> None:
        for one in self.announced:
            assert {entry.key for entry in one.objects} <= self.objects.keys()
            assert one.checkpoint in self.objects


TestTrainersAndSweeps = TrainersAndSweeps.TestCase
