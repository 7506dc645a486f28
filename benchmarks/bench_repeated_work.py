"""How much work is done again when a worker is killed, and when another joins?

    python benchmarks/bench_repeated_work.py [--tasks 400] [--rounds 2] [--json PATH]

Tasks of 1 to 5 turns of 0.1 s, one in 20 of 60 turns, on a real broker; each worker is a process.
One of two, of 16 episodes at once, gets a SIGKILL once half of the tasks are finished and does not
come back. Then, in other pools, a fifth joins four of 8 episodes, which are given as many tasks
again until it plays some. Baseline, at the same time on the same broker: the same workers, but they
commit only up to the oldest unfinished task, and give up at once what they play of a partition that
they lose. A task is finished once its result is in the log.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import report
from embedded import CORES, embedded_broker
from playing import TURN_TOKENS, Pool, working_pool
from report import Row

QUESTION = "How much work is done again when a worker is killed, and when another joins?"
WAYS = ("ours", "baseline")
KILL_SLOTS = 16
JOIN_SLOTS = 8
MOST_PARTS = 20
"""Times that tasks are asked for until the newcomer plays some of them."""
USUAL_TURNS, LONG_TURNS, LONG_EVERY = 5, 60, 20
PATIENCE_S = 120.0
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Killed:
    """What a kill cost."""

    in_flight: int
    """Tasks that the worker had begun to play and not finished."""
    unwritten: int
    """Those of them that it had played to the end."""
    again: int
    """Its tasks that the other one began as well."""
    finished_again: int
    """Those of them whose result was in the log before."""
    tokens: int
    """Tokens of theirs that were played more than once."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What a newcomer cost."""

    tokens: int
    usual_tokens: int
    """Of tasks of usual length alone: the others outlast any hand-over."""
    finished_again: int


def main() -> None:
    arguments = report.parser(QUESTION)
    arguments.add_argument("--tasks", type=int, default=400)
    arguments.add_argument("--rounds", type=int, default=2, help="kills")
    arguments.add_argument("--cores", type=int, default=CORES)
    options = arguments.parse_args()
    kills = [f"kill-{number}" for number in range(options.rounds)]
    pools = [f"{case}-{way}" for case in [*kills, "join"] for way in WAYS]
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="astra-diaries-") as directory,
        embedded_broker(pools, pools=pools, cores=options.cores) as bootstrap,
    ):
        bench = Bench(bootstrap, Path(directory), options.tasks)
        found = bench.at_once(bench.kill_one_of_two, kills)
        for number, case in enumerate(kills):
            rows += kill_rows(number + 1, *found[case])
        rows += join_rows(*bench.at_once(bench.join_four, ["join"])["join"])
    report.write(QUESTION, rows, json_path=options.json)


class Bench:
    """The two cases."""

    def __init__(self, bootstrap: str, directory: Path, num_tasks: int) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._num_tasks = num_tasks

    def at_once(
        self, measure: Callable[[str, str], Found], cases: Sequence[str]
    ) -> dict[str, list[Found]]:
        """Every case in both ways: they mostly wait."""
        with ThreadPoolExecutor() as threads:
            running = {case: [threads.submit(measure, case, way) for way in WAYS] for case in cases}
            return {case: [one.result() for one in both] for case, both in running.items()}

    def kill_one_of_two(self, case: str, way: str) -> Killed:
        turns = self._turns(case, self._num_tasks)
        with self._pool(case, way, 2, slots=KILL_SLOTS) as pool:
            pool.ask(turns)
            pool.wait_for(list(turns), share=0.5, within_s=PATIENCE_S)
            pool.kill(0)
            pool.wait_for(list(turns), within_s=PATIENCE_S)
        dead, survivor = (pool.diaries[slot].count("start") for slot in (0, 1))
        played = pool.diaries[0].count("turn")
        begun = turns.keys() & dead.keys()
        finished = {task for task in begun if "0" in pool.finished[task]}
        again = begun & survivor.keys()
        return Killed(
            in_flight=len(begun - finished),
            unwritten=sum(played[task] == turns[task] for task in begun - finished),
            again=len(again),
            finished_again=len(again & finished),
            tokens=tokens_again(pool, turns, again),
        )

    def join_four(self, case: str, way: str) -> Joined:
        turns: dict[str, int] = {}
        with self._pool(case, way, 4, slots=JOIN_SLOTS) as pool:
            for part in range(MOST_PARTS):
                more = self._turns(f"{case}-{part}", self._num_tasks)
                pool.ask(more)
                turns |= more
                if 4 not in pool.diaries:
                    pool.start_worker(4)
                pool.wait_for(list(more), share=0.5, within_s=PATIENCE_S)
                if pool.diaries[4].count("start"):
                    break
            else:
                raise TimeoutError(f"{case}-{way}: the fifth worker must play: it never did")
            pool.wait_for(list(turns), within_s=PATIENCE_S)
        usual = [task for task, num_turns in turns.items() if num_turns <= USUAL_TURNS]
        twice = [task for task in turns if len(pool.finished[task]) > 1]
        return Joined(
            tokens=tokens_again(pool, turns, turns),
            usual_tokens=tokens_again(pool, turns, usual),
            finished_again=len(twice),
        )

    def _turns(self, case: str, num_tasks: int) -> dict[str, int]:
        rng = np.random.default_rng(sum(case.encode()))
        turns = rng.integers(1, USUAL_TURNS + 1, num_tasks)
        turns[rng.choice(num_tasks, num_tasks // LONG_EVERY, replace=False)] = LONG_TURNS
        return {f"{case}-{number}": int(count) for number, count in enumerate(turns)}

    def _pool(
        self, case: str, way: str, num_workers: int, *, slots: int
    ) -> AbstractContextManager[Pool]:
        return working_pool(
            self._bootstrap,
            f"{case}-{way}",
            self._directory,
            num_workers,
            is_baseline=way == "baseline",
            slots=slots,
        )


def tokens_again(pool: Pool, turns: Mapping[str, int], tasks: Collection[str]) -> int:
    """Tokens of some tasks that had been played before, by whomever."""
    played: Counter[str] = Counter()
    for diary in pool.diaries.values():
        played += diary.count("turn")
    return sum(TURN_TOKENS * (played[task] - turns[task]) for task in tasks)


def kill_rows(number: int, ours: Killed, baseline: Killed) -> list[Row]:
    def row(name: str, field: str, unit: str, goal: float | None = None) -> Row:
        value, usual = getattr(ours, field), getattr(baseline, field)
        return Row(name=f"kill {number}: {name}", value=value, unit=unit, baseline=usual, goal=goal)

    return [
        row("in flight on the dead worker", "in_flight", "tasks"),
        row("of these played to the end", "unwritten", "tasks"),
        row("played again", "again", "tasks", goal=ours.in_flight),
        row("finished and played again", "finished_again", "tasks", goal=0),
        row("tokens played again", "tokens", "tokens"),
    ]


def join_rows(ours: Joined, baseline: Joined) -> list[Row]:
    def row(name: str, field: str, unit: str, goal: float | None = None) -> Row:
        value, usual = getattr(ours, field), getattr(baseline, field)
        return Row(
            name=f"fifth joins four: {name}", value=value, unit=unit, baseline=usual, goal=goal
        )

    return [
        row("tokens played again", "tokens", "tokens"),
        row("tokens played again, of usual tasks", "usual_tokens", "tokens", goal=0),
        row("finished and played again", "finished_again", "tasks", goal=0),
    ]


if __name__ == "__main__":
    main()
