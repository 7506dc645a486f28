"""What a run promised, checked against what stands in its topics and its store.

Each rule is a function from a ledger to what breaks it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from astra_stream.analysis.ledger import Announced, Batched, Ledger
from astra_stream.analysis.orphans import named_keys
from astra_stream.records import PolicyVersion, Sample

DELIVERY_LIMIT = "DeliveryLimitError"
"""Kind of error of a sample that was given up because its request ended too many processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that must not be."""

    rule: str
    """Which rule: a word that can be counted."""
    what: str
    """Id of the group, sample, batch, version or object."""
    said: str
    """What is wrong with it."""
    where: str = ""
    """Coordinates of the record that shows it; empty where that is what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit counted and found."""

    finished: bool
    """Whether the last version is announced as final."""
    groups: int
    """Groups that were requested for training."""
    open_groups: int
    """Those of them that have not ended; 0 in a finished run."""
    samples: int
    """Trajectories of those groups."""
    evaluation_samples: int
    """Trajectories of held-out prompts."""
    outcomes: int
    """Groups that have ended."""
    endings: Mapping[str, int]
    """How many of them were trained, and dropped for which reason."""
    batches: int
    """Batches that were trained."""
    versions: int
    """Versions announced, the first included."""
    dead_letters: int
    """Records that could not be processed."""
    lost: int
    """Groups and samples without an end, in a finished run."""
    duplicated: int
    """Groups and samples with more than one."""
    orphans: tuple[str, ...]
    """Objects that nothing names; a crash between upload and announcement leaves some."""
    violations: tuple[Violation, ...]


def audit(ledger: Ledger) -> AuditReport:
    """Apply every rule to everything that was taken."""
    violations = tuple(violation for rule in RULES for violation in rule(ledger))
    by_rule = Counter(violation.rule for violation in violations)
    endings = ledger.endings()
    last = [ends[-1] for ends in endings.values()]
    counts = Counter(f"{e.event}: {e.reason}" if e.reason else e.event for e in last)
    return AuditReport(
        finished=ledger.is_finished,
        groups=len(ledger.issued),
        open_groups=len(ledger.issued.keys() - endings.keys()),
        samples=len(ledger.played),
        evaluation_samples=len(ledger.evaluated),
        outcomes=len(endings),
        endings=dict(sorted(counts.items())),
        batches=sum(number < ledger.newest for number in ledger.batches),
        versions=len({one.record.version for one in ledger.announced}),
        dead_letters=ledger.num_dead_letters,
        lost=by_rule["lost"],
        duplicated=by_rule["duplicated"],
        orphans=tuple(orphans(ledger)),
        violations=violations,
    )


def groups_end_once(ledger: Ledger) -> Iterator[Violation]:
    """Every requested group is requested once and ends once; none ends that was not requested."""
    endings = ledger.endings()
    for group, requests in ledger.issued.items():
        ends = endings.get(group, [])
        if len(requests) > 1:
            said = f"was requested {len(requests)} times"
            yield Violation(rule="duplicated", what=group, said=said, where=requests[1].where)
        if len(ends) > 1:
            said = f"ended {len(ends)} times: {', '.join(end.event for end in ends)}"
            yield Violation(rule="duplicated", what=group, said=said, where=ends[1].where)
        if not ends and ledger.is_finished:
            said = "was requested, and neither trained nor dropped"
            yield Violation(rule="lost", what=group, said=said, where=requests[0].where)
    for group in sorted(ledger.ended.keys() - ledger.issued.keys() - {""}):
        where = ledger.ended[group][0].where
        said = "has an outcome and no request"
        yield Violation(rule="unknown", what=group, said=said, where=where)


def samples_stand_once(ledger: Ledger) -> Iterator[Violation]:
    """Every sample has one trajectory, of a group that was requested."""
    for sample, places in [*ledger.played.items(), *ledger.evaluated.items()]:
        if len(places) > 1:
            said = f"stands {len(places)} times in its topic"
            yield Violation(rule="duplicated", what=sample, said=said, where=places[1].where)
        if places[0].error_kind == DELIVERY_LIMIT:
            said = "was given up: its request ended too many processes"
            yield Violation(rule="delivery_limit", what=sample, said=said, where=places[0].where)
    for sample, places in ledger.played.items():
        if places[0].group_id not in ledger.issued:
            said = "was played and not requested"
            yield Violation(rule="unknown", what=sample, said=said, where=places[0].where)


def ended_groups_are_whole(ledger: Ledger) -> Iterator[Violation]:
    """A group that has ended has a trajectory for each of its samples."""
    indices: dict[str, set[int]] = defaultdict(set)
    for places in ledger.played.values():
        indices[places[0].group_id].add(places[0].sample_index)
    for group, ends in ledger.endings().items():
        if group not in ledger.issued:
            continue
        missing = ledger.issued[group][0].group_size - len(indices[group])
        if missing > 0:
            said = f"ended with {missing} samples that have no trajectory"
            yield Violation(rule="lost", what=group, said=said, where=ends[0].where)


def batches_are_whole(ledger: Ledger) -> Iterator[Violation]:
    """Batches follow one another from 0, each with all of its slices once."""
    for number, batch in sorted(ledger.batches.items()):
        if sorted(batch.indices) != list(range(batch.count)):
            what = f"{ledger.policy}/{number}"
            said = f"must have slices 0 to {batch.count - 1}: got {sorted(batch.indices)}"
            yield Violation(rule="batch", what=what, said=said, where=batch.where)
    for number in sorted(set(range(max(ledger.batches, default=0))) - ledger.batches.keys()):
        yield Violation(rule="batch", what=f"{ledger.policy}/{number}", said="is not there")


def samples_train_once(ledger: Ledger) -> Iterator[Violation]:
    """A batch holds played samples of its own policy, fresh enough, each fresh one once."""
    trained_in: dict[str, int] = {}
    for number, batch in sorted(ledger.batches.items()):
        for sample in batch.samples:
            if said := _wrong_sample(ledger, sample, number):
                what = sample.trajectory_id
                yield Violation(rule="batch", what=what, said=said, where=batch.where)
            former = trained_in.setdefault(sample.trajectory_id, number)
            if former != number and not sample.replay_use:
                said = f"is fresh in batch {former} and in batch {number}"
                what = sample.trajectory_id
                yield Violation(rule="duplicated", what=what, said=said, where=batch.where)


def _wrong_sample(ledger: Ledger, sample: Sample, number: int) -> str:
    if sample.trajectory_id in ledger.evaluated:
        return f"is an evaluation's and in batch {number}"
    if sample.trajectory_id not in ledger.played:
        return f"is in batch {number} and not in the trajectories"
    if not 0 <= sample.staleness <= ledger.max_staleness:
        return f"has staleness {sample.staleness}; the bound is {ledger.max_staleness}"
    oldest = ledger.played[sample.trajectory_id][0].oldest
    made = number - sample.staleness
    if oldest is None or oldest.number != made:
        return f"is said to be of v{made} in batch {number}; its trajectory says {oldest}"
    return ""


def trained_groups_say_so(ledger: Ledger) -> Iterator[Violation]:
    """The groups with an outcome of a trained batch are those in it."""
    said_so: dict[int, set[str]] = defaultdict(set)
    for group, ends in ledger.endings().items():
        for end in ends:
            if end.event == "trained":
                said_so[end.trained_version].add(group)
    for number in range(ledger.newest):
        batch = ledger.batches.get(number, Batched(0, ""))
        inside = {sample.group_id for sample in batch.samples}
        for group in sorted(inside ^ said_so[number]):
            said = f"is in batch {number} and has no outcome of it"
            if group not in inside:
                said = f"has an outcome of batch {number} and is not in it"
            yield Violation(rule="batch", what=group, said=said, where=batch.where)


def versions_follow(ledger: Ledger) -> Iterator[Violation]:
    """Versions rise one by one, or open a lineage; deltas and the final one name known hashes."""
    before: Announced | None = None
    known: dict[str, PolicyVersion] = {}
    for one in ledger.announced:
        what = str(one.record.version)
        for said in _wrong_version(ledger, before, one, known):
            yield Violation(rule="version", what=what, said=said, where=one.where)
        if one.record.kind != "final":
            known[one.record.root_hash] = one.record.version
        before = one


def _wrong_version(
    ledger: Ledger, before: Announced | None, one: Announced, known: Mapping[str, PolicyVersion]
) -> Iterator[str]:
    record = one.record
    if before is not None and before.record.kind == "final":
        yield "was announced after the final one"
    elif record.kind == "final":
        if before is None or before.record.root_hash != record.root_hash:
            yield "is final with another hash than the version before it"
    elif not _may_follow(before, one):
        last = None if before is None else before.record.version
        yield f"follows {last}"
    if record.kind == "delta" and known.get(record.base_hash) != record.base:
        yield f"is a delta to {record.base}, which was not announced with that hash"
    if record.batch_id and record.version.number - 1 not in ledger.batches:
        yield f"was made of batch {record.batch_id}, which is not in the batches"


def _may_follow(before: Announced | None, one: Announced) -> bool:
    after = one.record.version
    if before is None:
        return after == PolicyVersion(0, 0)
    last = before.record.version
    opened = PolicyVersion(last.lineage + 1, last.number)
    return after == last.next() or (after == opened and one.record.kind == "snapshot")


def named_objects_are_there(ledger: Ledger) -> Iterator[Violation]:
    """Every object that an announcement or a checkpoint names is in the store with its size."""
    if ledger.present is None:
        return
    for one in ledger.announced:
        named = {entry.key: entry.size_bytes for entry in one.record.objects}
        if one.record.checkpoint:
            named |= ledger.checkpoints.get(one.record.checkpoint, {one.record.checkpoint: 1})
        for key, size_bytes in named.items():
            got = ledger.present.get(key)
            if got != size_bytes:
                said = f"must have {size_bytes} bytes in the store: got {got or 'no object'}"
                yield Violation(rule="object", what=key, said=said, where=one.where)


def records_can_be_read(ledger: Ledger) -> Iterator[Violation]:
    """Every record decodes."""
    for where, error in ledger.unreadable.items():
        yield Violation(rule="unreadable", what=where, said=error, where=where)


def versions_are_reproduced(ledger: Ledger) -> Iterator[Violation]:
    """Trained again, the batches make the weights that were announced."""
    announced: dict[int, set[str]] = defaultdict(set)
    for one in ledger.announced:
        announced[one.record.version.number].add(one.record.root_hash)
    for number, got in ledger.retrained.items():
        if number in announced and got not in announced[number]:
            hashes = ", ".join(sorted(announced[number]))
            said = f"hashes to {got} where its batches are trained again; announced was {hashes}"
            yield Violation(rule="weights", what=f"v{number}", said=said)


def orphans(ledger: Ledger) -> list[str]:
    """Keys of the objects that nothing names."""
    records = [one.record for one in ledger.announced]
    named = named_keys(records)
    named |= {key for files in ledger.checkpoints.values() for key in files}
    return sorted((ledger.present or {}).keys() - named)


RULES: tuple[Callable[[Ledger], Iterator[Violation]], ...] = (
    groups_end_once,
    samples_stand_once,
    ended_groups_are_whole,
    batches_are_whole,
    samples_train_once,
    trained_groups_say_so,
    versions_follow,
    named_objects_are_there,
    records_can_be_read,
    versions_are_reproduced,
)
