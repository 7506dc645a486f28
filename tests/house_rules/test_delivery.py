"""Every test that the page on delivery names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"`(test_\w+|Test\w+)`")
DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)|^(Test\w+) =", re.MULTILINE)


def test_each_statement_on_delivery_names_a_test_that_exists():
    named = set(NAME.findall((ROOT / "docs" / "design" / "delivery.md").read_text()))
    sources = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "astra_stream/testing").glob("*.py")]
    defined = {
        first or second for path in sources for first, second in DEFINED.findall(path.read_text())
    }
    assert len(named) > 40
    assert named <= defined
