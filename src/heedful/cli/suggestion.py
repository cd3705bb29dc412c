"""Commands that are suggested: a line each, whatever the text, that can be typed as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from heedful.cli.options import program

LONGEST = 60  # characters of a text that is suggested
JOINERS = "\u200c\u200d"  # not printable alone, but parts of Persian words and of emoji


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


def shortened(text: str, most: int = LONGEST) -> str:
    """The beginning of a text in one line: whole words where they fit, nothing unprintable.

    >>> shortened("to be,\\nor not to be", most=12), shortened("Donaudampfschiff", most=5)
    ('to be, or', 'Donau')
    """
    line = " ".join("".join(char if _is_seen(char) else " " for char in text).split())
    if len(line) <= most:
        return line
    return line[: most + 1].rpartition(" ")[0] or line[:most]


def _is_seen(char: str) -> bool:
    return char.isprintable() or char in JOINERS
