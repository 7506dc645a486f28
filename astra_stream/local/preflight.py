"""Whether this machine can install the demo, asked before anything is downloaded.

Runs as a plain script, before the package or any dependency is there and on a Python that may be
too old for the package; so it uses the standard library only, and syntax that Python 3.6 reads.
"""

import importlib.util
import os
import platform
import shutil
import sys

MIN_PYTHON = (3, 11)
MIN_DISK_BYTES = 10 * 10**9
MACHINES = ("x86_64", "aarch64", "arm64")

PLAN = """\
This installs into .venv and then runs. Nothing outside this directory changes but the caches.
  downloads   about {download_mb:,} MB of Python packages (most of it torch), once,
              and 44 MB of Apache Kafka at the first start
  disk        {disk_gb} GB in .venv; {free_gb:.0f} GB are free here
  time        about {fast_s} s to install at 50 MB/s, {slow_min} min at 10 MB/s; then the run
"""
DOWNLOAD_MB = 2750
DISK_GB = 4.6


def problems(python: "tuple[int, ...]", system: str, machine: str, free_bytes: int) -> "list[str]":
    """Return what stands in the way, each with its remedy; empty when nothing does.

    Args:
        python: Version of the interpreter that would make the environment, as numbers.
        system: As ``platform.system()`` says it.
        machine: As ``platform.machine()`` says it.
        free_bytes: Free space where ``.venv`` will be.
    """
    found = []
    if python < MIN_PYTHON:
        found.append(
            "python must be 3.11 or newer: got {}. "
            "Name another with `make demo PYTHON=python3.12`.".format(".".join(map(str, python)))
        )
    if system != "Linux" or machine not in MACHINES:
        found.append(
            f"platform must be Linux on x86-64 or arm64: got {system} on {machine}. "
            "Use such a machine, a virtual one or WSL 2."
        )
    if free_bytes < MIN_DISK_BYTES:
        found.append(
            f"free disk must be at least {MIN_DISK_BYTES / 1e9:.0f} GB: got "
            f"{free_bytes / 1e9:.1f} GB in {os.getcwd()!r}. Free some, or clone to a larger disk."
        )
    return found


def venv_problems() -> "list[str]":
    """Return what keeps this interpreter from making a virtual environment with pip in it.

    Debian and Ubuntu ship ``venv`` without ``ensurepip``, so both are looked for.
    """
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if not missing:
        return []
    return [
        "python must have the modules venv and ensurepip: got no {}. "
        "Run `apt install python3-venv`, or use another with `make demo PYTHON=...`.".format(
            " and no ".join(missing)
        )
    ]


def main() -> int:
    """Print the plan and return 0, or print every problem and return 2."""
    free_bytes = shutil.disk_usage(os.getcwd()).free
    found = (
        problems(tuple(sys.version_info[:3]), platform.system(), platform.machine(), free_bytes)
        + venv_problems()
    )
    for problem in found:
        sys.stderr.write(problem + "\n")
    if found:
        return 2
    sys.stdout.write(
        PLAN.format(
            download_mb=DOWNLOAD_MB,
            disk_gb=DISK_GB,
            free_gb=free_bytes / 1e9,
            fast_s=DOWNLOAD_MB // 50,
            slow_min=round(DOWNLOAD_MB / 10 / 60),
        )
    )
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
