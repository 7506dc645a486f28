"""The reference says what the code says."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from astra_stream import errors
from astra_stream.testing.backend_contract import STEP_DIAGNOSTICS

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
FIRST_CELL = re.compile(r"^\| `(\w+)`", re.MULTILINE)
STEP_TIMES = {
    "batch_wait_seconds",
    "step_seconds",
    "export_seconds",
    "publish_wait_seconds",
    "repeated_batches",
}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", REFERENCE / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = generator().PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_what_the_code_generates_now(page: str) -> None:
    wanted = PAGES[page]()
    assert (REFERENCE / page).read_text() == wanted, "run: python docs/reference/generate.py"


def test_every_diagnostic_of_a_step_is_explained() -> None:
    explained = set(FIRST_CELL.findall((REFERENCE / "metrics.md").read_text()))
    assert explained >= STEP_DIAGNOSTICS | STEP_TIMES


def test_every_class_of_error_is_explained() -> None:
    explained = set(FIRST_CELL.findall((REFERENCE / "errors.md").read_text()))
    raised = {name for name, found in vars(errors).items() if isinstance(found, type)}
    assert raised <= explained
