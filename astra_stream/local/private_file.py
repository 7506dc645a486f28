"""Files that hold secrets: whole or absent, and readable by their owner only."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Replace a file with one of mode 0600; a crash leaves the old one or the new one."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    scratch.replace(path)
