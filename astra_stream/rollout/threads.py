"""Blocking clients beside an event loop: a thread each, so that a client's calls never overlap."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any


def one_thread(name: str) -> ThreadPoolExecutor:
    """A thread for one client: its calls, the closing one included, never overlap."""
    return ThreadPoolExecutor(1, thread_name_prefix=name)


async def in_thread(thread: Executor, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a blocking function on ``thread`` and wait for its result."""
    return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)
