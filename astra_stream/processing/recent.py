"""Which groups ended lately: what still comes of them is late, or was delivered twice."""

from collections.abc import Mapping
from typing import Any

from astra_stream.log.processor import Keep

PREFIX = "ended/"
NUM_KEPT = 1024
"""Groups remembered for each partition; mirrored topics repeat what is recent."""


class RecentlyEnded:
    """The last groups that ended in one partition, as entries of its changelog."""

    def __init__(self, entries: Mapping[str, Any] | None = None) -> None:
        """Take over what a predecessor kept."""
        entries = entries or {}
        kept = sorted(entries[key] for key in entries if key.startswith(PREFIX))
        self._groups = {int(number): str(group) for number, group in kept}
        self._ids = set(self._groups.values())
        self._next = 1 + max(self._groups, default=-1)

    def __contains__(self, group_id: str) -> bool:
        """Say whether the group ended lately."""
        return group_id in self._ids

    def add(self, group_id: str) -> Keep:
        """Remember a group in place of the oldest one."""
        forgotten = self._groups.pop(self._next - NUM_KEPT, None)
        if forgotten is not None:
            self._ids.discard(forgotten)
        number, self._next = self._next, self._next + 1
        self._groups[number] = group_id
        self._ids.add(group_id)
        return Keep(f"{PREFIX}{number % NUM_KEPT}", [number, group_id])
