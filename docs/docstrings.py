"""What griffe is told of our docstrings, so that they read well on a page.

Doctests stand in them bare, as Python wants them: here they become code. `queries, keys: …`
explains two arguments at once: here each gets its line.
"""

import re

from griffe import Extension

DOCTEST = re.compile(r"^>>> .*\n(?:.+\n?)*", re.MULTILINE)
SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)$", re.MULTILINE)


class Docstrings(Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj, **_):
        """Every module, class, function and attribute passes here."""
        if obj.docstring:
            text = SEVERAL.sub(_one_by_one, obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(_as_code, text)


def _one_by_one(found):
    indent, names, meaning = found.groups()
    return "\n".join(f"{indent}{name}: {meaning}" for name in names.split(", "))


def _as_code(found):
    return f"```pycon\n{found[0].rstrip()}\n```\n"
