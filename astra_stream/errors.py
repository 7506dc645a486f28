"""The exception tree: one class for each thing that a catcher can do.

A message reads ``<subject> must <rule>: got <value>. <what to do>.`` so that it greps.
"""


class AstraStreamError(Exception):
    """Anything this package raises on purpose."""

    exit_code = 1


class ConfigError(AstraStreamError, ValueError):
    """The user asked for something that cannot be: say all of it before anything starts; exit 2."""

    exit_code = 2


class RecordError(AstraStreamError, ValueError):
    """One record is bad: it becomes a dead letter with its coordinates and the stream goes on."""


class SchemaError(RecordError):
    """The bytes do not decode, or their schema is not one that this version can read."""


class TransientError(AstraStreamError, OSError):
    """Log, store or engine cannot be reached within the deadline: exit 75, to be started again."""

    exit_code = 75


class RebalancedError(AstraStreamError):
    """The group moved on, the transaction was aborted: write again what is still owned."""

    exit_code = 75


class FencedError(AstraStreamError):
    """A newer instance owns this work: write nothing more; exit 75."""

    exit_code = 75


class DeliveryLimitError(AstraStreamError):
    """A request has ended too many processes that played it: it is recorded as a failure."""


class DeadlineError(AstraStreamError, TimeoutError):
    """A request's time was up when it was to be played again: it is recorded as a failure."""


class WeightsError(AstraStreamError):
    """Weights cannot be completed or differ from their announcement: keep the ones you have."""
