"""What may be committed, and where it lies."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "astra_stream",
    "benchmarks",
    "connectors",
    "docker-compose.yml",
    "docs",
    "examples",
    "pyproject.toml",
    "requirements",
    "schemas",
    "tests",
    "topics",
}
MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:home/\w|root/\w|work/\w|farm/\w|opt/wheels)")
REGISTRY = re.compile(
    r"\b(?:(?:pypi|npmjs|pythonhosted|golang|debian)\.(?:org|com|io)|crates\.io"
    r"|maven(?:\.\w+)?\.(?:org|com)|repo1?\.maven)\b"
)
LOCK_ADDRESS = re.compile(
    r"https?://|^\s*(?:-i|-f|--index|--extra-index|--find-links)", re.MULTILINE
)


@cache
def tracked() -> tuple[Path, ...]:
    """Return the files that git has, or would take, in this checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("this copy has no .git, so what is tracked is not known")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    paths = {ROOT / name for name in listed.split("\0") if name}
    return tuple(sorted(path for path in paths if path.is_file()))


def matches(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked():
        text = path.read_bytes().decode(errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {hit.group()}" for hit in pattern.finditer(text)]
    return found


def test_the_top_level_holds_only_what_it_is_for() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in names if not name.startswith(".")} <= TOP_LEVEL


def test_no_file_names_a_path_of_one_machine() -> None:
    assert matches(MACHINE_PATH) == []


def test_no_file_names_a_package_registry() -> None:
    assert matches(REGISTRY) == []


def test_no_file_is_too_large_to_review() -> None:
    large = [path for path in tracked() if path.stat().st_size > 3 * 2**20]
    assert large == []


def test_locks_hold_names_versions_and_hashes_but_no_addresses() -> None:
    for lock in sorted((ROOT / "requirements").glob("*.txt")):
        text = lock.read_text()
        assert not LOCK_ADDRESS.search(text), f"{lock.name}: {LOCK_ADDRESS.search(text)}"
        for entry in re.split(r"\n(?=\S)", text.strip()):
            assert re.match(r"[\w.-]+==\S+", entry), f"{lock.name}: {entry[:80]!r}"
            assert "--hash=sha256:" in entry, f"{lock.name}: {entry[:80]!r}"
