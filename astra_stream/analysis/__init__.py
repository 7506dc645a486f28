"""Questions asked of a run's topics: what it did so far, what it came to, how it looks.

Imports everything below but no configuration. Start with ``run_log.py``.
"""

from astra_stream.analysis.picture import draw
from astra_stream.analysis.run_log import RunTail
from astra_stream.analysis.run_state import RunState, Step
from astra_stream.analysis.summary import (
    Summary,
    read_summary,
    summarise,
    summary_json,
    summary_table,
    write_summary,
)

__all__ = [
    "RunState",
    "RunTail",
    "Step",
    "Summary",
    "draw",
    "read_summary",
    "summarise",
    "summary_json",
    "summary_table",
    "write_summary",
]
