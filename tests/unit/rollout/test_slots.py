"""Waiting samples take slots by the age of their request."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from astra_stream.records import PolicyVersion
from astra_stream.rollout.slots import Age, Slots


def age(version: int, issued_at_s: float = 0.0) -> Age:
    return Age(PolicyVersion(0, version), issued_at_s)


async def hold(slots: Slots, mine: Age, begun: list[Age], until: asyncio.Event) -> None:
    async with slots.held(mine):
        begun.append(mine)
        await until.wait()


async def settled() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(5):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


@given(ages=st.lists(st.builds(age, st.integers(0, 3), st.floats(0, 9)), min_size=1, max_size=12))
def test_the_oldest_of_those_that_wait_runs_next(ages: list[Age]):
    async def order() -> list[Age]:
        slots, begun, until = Slots(1), [], asyncio.Event()
        async with slots.held(age(9)):
            tasks = [asyncio.create_task(hold(slots, mine, begun, until)) for mine in ages]
            await settled()
            assert not begun
        until.set()
        await asyncio.gather(*tasks)
        return begun

    assert asyncio.run(order()) == sorted(ages)


@given(
    num_slots=st.integers(1, 3),
    cancelled=st.lists(st.integers(0, 7), max_size=8),
    when=st.sampled_from(["waiting", "just given"]),
)
def test_cancelling_neither_loses_nor_adds_a_slot(num_slots, cancelled, when):
    async def run() -> int:
        slots, begun, until = Slots(num_slots), [], asyncio.Event()
        tasks = [asyncio.create_task(hold(slots, age(i), begun, until)) for i in range(8)]
        if when == "waiting":
            await settled()
        for index in cancelled:
            tasks[index].cancel()
        await settled()
        until.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        begun.clear()
        until.clear()
        again = [asyncio.create_task(hold(slots, age(0), begun, until)) for _ in range(8)]
        await settled()
        now = len(begun)
        until.set()
        await asyncio.gather(*again)
        return now

    assert asyncio.run(run()) == num_slots
