"""Commands that are suggested: a line each, whatever the text, that can be typed as it stands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

LONGEST = 60  # characters of a text that is suggested


def program() -> str:
    """How the user can call the command again: by name, path, or the Python that runs it."""
    if shutil.which("heedful"):
        return "heedful"
    if os.path.basename(sys.argv[0]) == "heedful":
        return shlex.quote(os.path.relpath(sys.argv[0]))
    return f"{shlex.quote(sys.executable)} -m heedful"


def suggestion(command: str, *arguments: str | Path, text: str | None = None) -> str:
    """A command in a line; paths as a shell reads them, a text in quotes.

    >>> suggestion("plot", Path("my run"), text="It was a").partition("heedful ")[2]
    'plot \\'my run\\' "It was a"'
    >>> suggestion("translate", "runs/x", text="-1 degrees").partition("heedful ")[2]
    'translate runs/x -- "-1 degrees"'
    """
    words = [program(), command, *(shlex.quote(str(argument)) for argument in arguments)]
    if text is not None:
        words += ["--", quoted(text)] if text.startswith("-") else [quoted(text)]
    return " ".join(words)


def quoted(text: str) -> str:
    """A text as one argument of a command: in double quotes where a shell reads these alike.

    >>> print(quoted("It was a"), quoted('at $5 "each"'))
    "It was a" 'at $5 "each"'
    """
    return shlex.quote(text) if re.search(r'["$`\\!]', text) else f'"{text}"'


def beginning(text: str, most: int = LONGEST) -> str:
    """The beginning of a text: whole words where they fit.

    >>> beginning("to be, or not to be", most=12), beginning("Donaudampfschiff", most=5)
    ('to be, or', 'Donau')
    """
    most = min(most, LONGEST)
    if len(text) <= most:
        return text
    return text[: most + 1].rpartition(" ")[0] or text[:most]
