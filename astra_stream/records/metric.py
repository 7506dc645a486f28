"""MetricPoint: one number of a series."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astra_stream.records.checks import require_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """One value of one series; steps count versions."""

    series: str
    """Name with its unit, such as staleness_versions."""
    value: float
    """The value; may be NaN where a diagnostic is undefined."""
    step: int
    """Number of the version that it speaks of."""
    policy: str = ""
    """The policy; empty for the whole run."""
    service: str = ""
    """Who measured."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels from closed sets."""
    at_s: float = 0.0
    """Unix time, seconds."""

    def __post_init__(self) -> None:
        require_text("metric_point.series", self.series)
