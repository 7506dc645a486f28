"""The wheel works where there is no checkout."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, without the variables that would show it the checkout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(part) for part in command]
    done = subprocess.run(words, check=False, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of an environment that has the wheel, and this one's dependencies."""
    room = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", room, cwd=ROOT)
    (wheel,) = room.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", room / "env", cwd=room)
    python = room / "env" / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    run(uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel, cwd=room)
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=room)
    # A path line, not a site directory: the .pth of an editable install there is not followed.
    (Path(purelib.strip()) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_the_installed_command_prints_its_help(installed: Path, tmp_path: Path) -> None:
    assert "run" in run(installed / "astra", "--help", cwd=tmp_path)


@pytest.mark.parametrize("folder", ["topics", "schemas", "connectors"])
def test_the_wheel_carries_the_declarations(installed: Path, tmp_path: Path, folder: str) -> None:
    code = f"from astra_stream.declarations import declared; print(declared({folder!r}))"
    shipped = Path(run(installed / "python", "-c", code, cwd=tmp_path).strip())
    assert shipped.is_relative_to(installed.parent)
    assert sorted(p.name for p in shipped.iterdir()) == sorted(
        p.name for p in (ROOT / folder).iterdir()
    )
