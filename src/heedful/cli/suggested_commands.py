"""Commands suggested to the user: single lines that a shell accepts unchanged."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

LONGEST = 60  # maximum number of characters of a suggested text


def program() -> str:
    """Return how to call the command: by its name, or as `python -m heedful`."""
    return "heedful" if shutil.which("heedful") else f"{shlex.quote(sys.executable)} -m heedful"


def suggestion(command: str, *arguments: str | Path, text: str | None = None) -> str:
    """Return a command as one line: arguments quoted for a shell, a text always in quotes.

    >>> suggestion("plot", Path("my run"), text="It was a").partition("heedful ")[2]
    'plot \\'my run\\' "It was a"'
    >>> suggestion("translate", "runs/x", text="-1 degrees").partition("heedful ")[2]
    'translate runs/x -- "-1 degrees"'
    """
    words = [program(), command]
    for argument in arguments:  # a path such as -out would be taken for an option
        prefix = "./" if isinstance(argument, Path) and str(argument).startswith("-") else ""
        words.append(shlex.quote(f"{prefix}{argument}"))
    if text is not None:
        words += ["--", quoted(text)] if text.startswith("-") else [quoted(text)]
    return " ".join(words)


def quoted(text: str) -> str:
    """Quote a text for a shell, in double quotes unless it has special characters.

    >>> print(quoted("It was a"), quoted('at $5 "each"'))
    "It was a" 'at $5 "each"'
    """
    return shlex.quote(text) if re.search(r'["$`\\!]', text) else f'"{text}"'


def beginning(text: str, length: int = LONGEST) -> str:
    """Return at most `length` characters of a text, cut between words if possible.

    >>> beginning("to be, or not to be", length=12), beginning("Donaudampfschiff", length=5)
    ('to be, or', 'Donau')
    """
    length = min(length, LONGEST)
    if len(text) <= length:
        return text
    return text[: length + 1].rpartition(" ")[0] or text[:length]
