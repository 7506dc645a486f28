"""Where the declarations are: ``topics/``, ``schemas/`` and ``connectors/``.

A checkout has them at its top level and an installed package carries a copy; the copy wins, since
a checkout has none and a directory beside an installed package need not be ours.
"""

from pathlib import Path

DECLARED = ("topics", "schemas", "connectors")
"""The folders of declarations, by the names they have at the top level."""

_PACKAGE = Path(__file__).resolve().parent


def declared(folder: str) -> Path:
    """Return the directory with the declarations of one kind.

    Args:
        folder: One of ``DECLARED``.

    Raises:
        ValueError: ``folder`` is none of them.
        FileNotFoundError: Neither the package nor a checkout has it: the installation is damaged.
    """
    if folder not in DECLARED:
        raise ValueError(f"folder must be one of {list(DECLARED)}: got {folder!r}.")
    shipped = _PACKAGE / "_shipped" / folder
    for candidate in (shipped, _PACKAGE.parent / folder):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"declarations must be installed with the package: got no {str(shipped)!r}. "
        "Install astra-stream again."
    )
