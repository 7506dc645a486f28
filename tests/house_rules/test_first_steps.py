"""What a newcomer meets first: the Makefile, the check of the machine, the declarations."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import astra_stream
from astra_stream import declarations
from astra_stream.local import preflight

ROOT = Path(__file__).resolve().parents[2]
ENOUGH_BYTES = 20 * 10**9


def test_make_alone_lists_the_targets_with_a_sentence_each() -> None:
    command = ["make", "--no-print-directory"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[1]: line.split()[2:] for line in done.stdout.splitlines()}
    assert set(listed) >= {"demo", "test", "check", "bench", "docs"}
    assert all(len(words) >= 3 for words in listed.values())


def test_a_machine_that_has_everything_may_go_on() -> None:
    assert preflight.problems((3, 11, 0), "Linux", "aarch64", ENOUGH_BYTES) == []
    assert preflight.venv_problems() == []


def test_every_problem_of_a_machine_is_named_with_its_remedy() -> None:
    python, system, disk = preflight.problems((3, 9, 2), "Darwin", "arm64", 10**9)
    assert python.startswith("python must be 3.11 or newer: got 3.9.2. Name another")
    assert system.startswith("platform must be Linux on x86-64 or arm64: got Darwin on arm64. Use")
    assert disk.startswith("free disk must be at least 10 GB: got 1.0 GB")


def test_an_old_python_can_read_the_check_that_refuses_it() -> None:
    ast.parse(Path(preflight.__file__).read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("folder", declarations.DECLARED)
def test_a_checkout_reads_its_own_declarations(folder: str) -> None:
    assert declarations.declared(folder) == ROOT / folder


def test_an_unknown_kind_of_declaration_is_refused() -> None:
    with pytest.raises(ValueError, match=r"folder must be one of .*: got 'tables'\."):
        declarations.declared("tables")


@pytest.mark.parametrize("name", astra_stream.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(astra_stream, name).__name__ == name


def test_importing_the_package_loads_no_dependency() -> None:
    code = "import sys, astra_stream; print('numpy' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
