"""The memory log keeps the contract."""

from typing import cast

from astra_stream.log.interface import Log, LogAdmin
from astra_stream.log.memory import MemoryLog
from astra_stream.testing.log_contract import LogContract


class TestMemoryLog(LogContract):
    def make_log(self) -> Log:
        return MemoryLog()

    def make_admin(self, log: Log) -> LogAdmin:
        return cast("MemoryLog", log)
