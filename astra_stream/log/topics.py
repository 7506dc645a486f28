"""Which topics a run has: read from ``topics/*.toml``, compared with the log, made.

A keyed topic never changes its number of partitions: keys would move and state with them.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astra_stream.errors import ConfigError
from astra_stream.log.interface import LogAdmin, TopicSettings

KEYS = {
    "name": str,
    "record": str,
    "key": str,
    "partitions": int,
    "cleanup": str,
    "retention": str,
    "why": str,
    "max_message_bytes": int,
    "timestamps": str,
}
OPTIONAL = frozenset({"max_message_bytes", "timestamps"})
UNITS_MS = {"h": 3_600_000, "d": 86_400_000}
FOREVER = "forever"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeclaration:
    """One file of ``topics/``: a topic, or one for each policy, pool or changelog."""

    stem: str
    """The file's name without ``.toml``."""
    name: str
    """Name with ``<run>``, ``<policy>``, ``<pool>`` or ``<changelog>`` left open."""
    record: str
    """Schema file that its records follow, or ``bytes``."""
    key: str
    """What its records are keyed by; empty for none."""
    partitions: int
    """Partitions, unless the run says otherwise."""
    cleanup: str
    """delete or compact."""
    retention: str
    """How long records stay: forever, or a number with h or d."""
    why: str
    """What the topic is for."""
    max_message_bytes: int | None = None
    """Largest record batch; None leaves it to the broker."""
    timestamps: str = "LogAppendTime"
    """Who stamps a record: LogAppendTime (the broker) or CreateTime (the writer)."""

    def settings(self) -> dict[str, str]:
        """Kafka topic configuration."""
        settings = {
            "cleanup.policy": self.cleanup,
            "retention.ms": str(_retention_ms(self.retention)),
            "message.timestamp.type": self.timestamps,
        }
        if self.max_message_bytes is not None:
            settings["max.message.bytes"] = str(self.max_message_bytes)
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step that makes the log agree with the declarations."""

    kind: str
    """create or configure."""
    topic: TopicSettings
    """What is wanted."""
    detail: str
    """What differs, for people."""


def read_declarations(directory: Path) -> dict[str, TopicDeclaration]:
    """All declarations of a directory by file stem.

    Raises:
        ConfigError: A file does not parse, lacks a key or has an unknown one; names it.
    """
    paths = sorted(directory.glob("*.toml"))
    if not paths:
        raise ConfigError(f"{directory} must have topic declarations: got none. Restore topics/.")
    return {path.stem: _read(path) for path in paths}


def declared_topics(
    run: str,
    policies: Sequence[str],
    pools: Sequence[str],
    changelogs: Mapping[str, int],
    *,
    directory: Path,
    partitions: Mapping[str, int] | None = None,
) -> list[TopicSettings]:
    """Every topic that a run needs, by name.

    Args:
        run: Name of the run.
        policies: Names of its policies.
        pools: Names of its pools of rollout workers.
        changelogs: Changelog topic name to number of partitions (that of the input it follows).
        directory: Where the declarations lie.
        partitions: Declaration stem to partitions, where the run wants another number.
    """
    declarations = read_declarations(directory)
    wanted = dict(partitions or {})
    for stem, count in wanted.items():
        if stem not in declarations or count < 1:
            raise ConfigError(
                f"partitions must name a declared topic and be at least 1: got {stem!r} = {count}. "
                f"Use one of {sorted(declarations)}."
            )
    topics = []
    for stem, declaration in declarations.items():
        count = wanted.get(stem, declaration.partitions)
        open_names = {"<policy>": policies, "<pool>": pools, "<changelog>": tuple(changelogs)}
        for name in _names(declaration.name.replace("<run>", run), open_names):
            topics.append(
                TopicSettings(
                    name=name,
                    partitions=changelogs.get(name, count),
                    settings=declaration.settings(),
                )
            )
    return sorted(topics, key=lambda topic: topic.name)


def plan(declared: Sequence[TopicSettings], existing: Mapping[str, TopicSettings]) -> list[Change]:
    """What would make ``existing`` agree with ``declared``; topics not declared are left alone.

    Raises:
        ConfigError: A topic exists with another number of partitions; names all of them.
    """
    moved = [
        f"{topic.name} has {existing[topic.name].partitions} and not {topic.partitions}"
        for topic in declared
        if topic.name in existing and existing[topic.name].partitions != topic.partitions
    ]
    if moved:
        raise ConfigError(
            f"partitions of a topic must stay as they are, since keys would move: got "
            f"{'; '.join(moved)}. Keep the number, or start a run of another name."
        )
    return [change for topic in declared for change in _change(topic, existing.get(topic.name))]


def apply(changes: Sequence[Change], admin: LogAdmin) -> None:
    """Carry out a plan."""
    created = [change.topic for change in changes if change.kind == "create"]
    if created:
        admin.create(created)
    for change in changes:
        if change.kind == "configure":
            admin.configure(change.topic)


def _change(wanted: TopicSettings, found: TopicSettings | None) -> Iterator[Change]:
    if found is None:
        detail = f"{wanted.partitions} partitions"
        yield Change(kind="create", topic=wanted, detail=detail)
        return
    names = sorted(wanted.settings.keys() | found.settings.keys())
    differing = [name for name in names if wanted.settings.get(name) != found.settings.get(name)]
    if differing:
        detail = ", ".join(
            f"{name}: {found.settings.get(name, 'unset')} -> {wanted.settings.get(name, 'unset')}"
            for name in differing
        )
        yield Change(kind="configure", topic=wanted, detail=detail)


def _names(name: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    for placeholder, choices in values.items():
        if placeholder in name:
            return [name.replace(placeholder, choice) for choice in choices]
    return [name]


def _read(path: Path) -> TopicDeclaration:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} must be TOML: got {error}. Correct the line.") from error
    _require_keys(path, table)
    declaration = TopicDeclaration(stem=path.stem, **table)
    if declaration.cleanup not in ("delete", "compact"):
        raise _wrong(path, "cleanup", "be 'delete' or 'compact'", declaration.cleanup)
    if declaration.partitions < 1:
        raise _wrong(path, "partitions", "be at least 1", declaration.partitions)
    try:
        _retention_ms(declaration.retention)
    except ValueError as error:
        rule = "be 'forever' or a number with h or d"
        raise _wrong(path, "retention", rule, declaration.retention) from error
    return declaration


def _require_keys(path: Path, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if key not in KEYS:
            raise ConfigError(
                f"{path}: {key} must be a known key: got {value!r}. Use one of {sorted(KEYS)}."
            )
        if type(value) is not KEYS[key]:
            raise _wrong(path, key, f"be of type {KEYS[key].__name__}", value)
    missing = sorted(KEYS.keys() - OPTIONAL - table.keys())
    if missing:
        raise ConfigError(f"{path} must say {', '.join(missing)}: got none. Add it.")


def _wrong(path: Path, key: str, rule: str, value: str | int) -> ConfigError:
    return ConfigError(f"{path}: {key} must {rule}: got {value!r}. Correct it.")


def _retention_ms(retention: str) -> int:
    if retention == FOREVER:
        return -1
    if retention[-1:] not in UNITS_MS:
        raise ValueError(retention)
    return int(retention[:-1]) * UNITS_MS[retention[-1]]
