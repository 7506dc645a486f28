"""The embedded servers and the supervisor: a broker, an object store and services as children.

Imports errors and the standard library; client libraries only inside the functions that probe.
Start with ``start_stack`` in stack.py and ``Supervisor`` in supervisor.py.
"""

from astra_stream.local.spawn import ProcessIdentity
from astra_stream.local.stack import Stack, StackInfo, read_stack, start_stack, stop_stack
from astra_stream.local.supervisor import ChildExited, Service, Supervisor

__all__ = [
    "ChildExited",
    "ProcessIdentity",
    "Service",
    "Stack",
    "StackInfo",
    "Supervisor",
    "read_stack",
    "start_stack",
    "stop_stack",
]
