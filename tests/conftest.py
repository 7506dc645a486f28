"""Settings that hold for every test; fixtures live beside the tests that use them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from astra_stream.local import Stack
    from tests.lab import Lab

# One thread a process: tests start trainers and workers side by side, and OpenMP pools that
# share few cores wait on one another. Set here, before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Nothing may be fetched while testing, so a model that is not here is an error at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile("astra", deadline=None, derandomize=True, print_blob=True, database=None)
settings.load_profile("astra")

BOOTSTRAP_VARIABLE = "ASTRA_TEST_BOOTSTRAP"
"""Environment variable with the address of a broker to test against instead of an embedded one."""
SERVERS = frozenset({"kafka_bootstrap", "s3_store_settings", "stack"})
SERVERS_TIMEOUT_S = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that use servers more time: the first of them waits until these are up.

    Slow tests come first, so that no process is left with one of them at the end.
    """
    items.sort(key=lambda item: "slow" not in item.keywords)
    for item in items:
        uses_servers = not SERVERS.isdisjoint(getattr(item, "fixturenames", ()))
        if uses_servers and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SERVERS_TIMEOUT_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import what takes many seconds before any test's time runs.

    A timeout in the middle of such an import leaves a broken module behind for every later test.
    """
    if all("house_rules" in item.nodeid for item in session.items):
        return
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from astra_stream.environments.tasks import import_reasoning_gym

    assert AutoModelForCausalLM
    assert AutoTokenizer
    import_reasoning_gym()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Stack"]:
    """A broker and an object store that all tests share; started when one first asks."""
    from astra_stream.local import start_stack

    with start_stack(tmp_path_factory.mktemp("shared-stack")) as started:
        yield started


@pytest.fixture(scope="session")
def kafka_bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port`` of a real broker."""
    named = os.environ.get(BOOTSTRAP_VARIABLE)
    return named or request.getfixturevalue("stack").bootstrap


@pytest.fixture(scope="session")
def s3_store_settings(stack: "Stack") -> dict[str, str]:
    """How to reach a real S3 server: endpoint, access_key, secret_key and bucket."""
    return {
        "endpoint": stack.s3_endpoint,
        "access_key": stack.s3_access_key,
        "secret_key": stack.s3_secret_key,
        "bucket": stack.store_url.removeprefix("s3://").partition("/")[0],
    }


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator["Lab"]:
    """Where a test makes its runs; nothing that it started outlives it."""
    from tests.lab import Lab

    closers: list[Callable[[], Any]] = []
    name = request.node.name.removeprefix("test_").partition("[")[0].replace("_", "-")[:40]
    yield Lab(
        directory=tmp_path,
        name=name,
        get_stack=lambda: request.getfixturevalue("stack"),
        closers=closers,
    )
    for close in reversed(closers):
        close()
