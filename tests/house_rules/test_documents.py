"""Code in the documents is code: Python compiles, TOML parses, and links lead somewhere."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "connectors").glob("*.md"),
    ]
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(document: Path, language: str) -> list[str]:
    return [code for name, code in FENCE.findall(document.read_text()) if name == language]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_python_blocks_compile(document: Path) -> None:
    for code in blocks(document, "python"):
        compile(code, name_of(document), "exec")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_toml_blocks_parse(document: Path) -> None:
    for code in blocks(document, "toml"):
        tomllib.loads(code)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_relative_links_lead_to_files(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{name_of(document)} links to {target}"
