"""reasoning-gym is imported whether or not its solver is installed."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),  # reasoning-gym alone takes seconds to import
    pytest.mark.skipif(
        importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"
    ),
]

WITHOUT_SOLVER = """
import importlib.util, sys, warnings
warnings.simplefilter("error")

class Missing:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name == "pycosat" else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Missing(finder) for finder in sys.meta_path]
from astra_stream.environments.tasks import import_reasoning_gym
from astra_stream.errors import ConfigError
gym = import_reasoning_gym()
print(gym.get_score_answer_fn("chain_sum")("5", entry={"answer": "5"}))
try:
    gym.create_dataset("zebra_puzzles", seed=0, size=1)[0]
except ConfigError as error:
    print(error)
"""


def test_a_task_that_needs_no_solver_works_without_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SOLVER], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    score, refusal = done.stdout.splitlines()
    assert score == "1.0"
    assert refusal.startswith("task must not need a solver: got one that calls pycosat")
