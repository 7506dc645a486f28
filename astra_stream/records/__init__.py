"""What is on the wire: frozen dataclasses over numpy arrays that refuse bad values; no I/O.

May import ``errors`` and numpy. Start with ``trajectory.py``; ``checks.py`` has the rules.
"""

from astra_stream.records.batch import BatchSlice, Sample
from astra_stream.records.checks import same_record
from astra_stream.records.dead_letter import DeadLetter
from astra_stream.records.evaluation import Evaluation
from astra_stream.records.metric import MetricPoint
from astra_stream.records.outcome import Outcome
from astra_stream.records.prompt import ChatMessage, Prompt
from astra_stream.records.request import PolicyNeed, RolloutRequest, Sampling
from astra_stream.records.trajectory import (
    Extra,
    Group,
    GroupStatistics,
    Segment,
    Trajectory,
    Turn,
    VersionSpan,
)
from astra_stream.records.weights import (
    ObjectEntry,
    PolicyVersion,
    TensorEntry,
    WeightAnnouncement,
)

__all__ = [
    "BatchSlice",
    "ChatMessage",
    "DeadLetter",
    "Evaluation",
    "Extra",
    "Group",
    "GroupStatistics",
    "MetricPoint",
    "ObjectEntry",
    "Outcome",
    "PolicyNeed",
    "PolicyVersion",
    "Prompt",
    "RolloutRequest",
    "Sample",
    "Sampling",
    "Segment",
    "TensorEntry",
    "Trajectory",
    "Turn",
    "VersionSpan",
    "WeightAnnouncement",
    "same_record",
]
