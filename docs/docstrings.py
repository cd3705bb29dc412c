"""A griffe extension that prepares docstrings for the reference pages.

Doctests become code blocks. A line that explains several arguments, such as `queries, keys: …`,
becomes a line for each argument.
"""

import re

from griffe import Extension

DOCTEST = re.compile(r"^>>> .*\n(?:.+\n?)*", re.MULTILINE)
SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)$", re.MULTILINE)


class Docstrings(Extension):
    """Rewrites each docstring before griffe parses it."""

    def on_object(self, *, obj, **_):
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            text = SEVERAL.sub(_line_per_name, obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(_as_code, text)


def _line_per_name(match):
    indent, names, meaning = match.groups()
    return "\n".join(f"{indent}{name}: {meaning}" for name in names.split(", "))


def _as_code(match):
    return f"```pycon\n{match[0].rstrip()}\n```\n"
