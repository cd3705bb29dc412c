"""Built-in texts: the examples of the documents and lessons, and the Python language reference.

The reference comes with CPython as `pydoc_data.topics`, the text of `help("topics")`.
"""

from __future__ import annotations

from heedful.errors import TextError

SENTENCE = "Your journey starts with one step"
SECOND = "Votre voyage commence par un seul pas"  # the same in French, for cross-attention

# Document 002, a notebook after Raschka's book: one row for each word of the sentence
EMBEDDINGS = (
    (0.43, 0.15, 0.89),
    (0.55, 0.87, 0.66),
    (0.57, 0.85, 0.64),
    (0.22, 0.58, 0.33),
    (0.77, 0.25, 0.10),
    (0.05, 0.80, 0.55),
)

# Document 001, Pahwa's *Decoding the magic behind LLMs*, section 4.2
FAMILY = {
    "queen": (0.2, 0.5, 0.1),
    "king": (0.9, 0.5, 0.1),
    "dad": (0.9, 0.7, 0.9),
    "mom": (0.2, 0.7, 0.9),
}

_LINES = """the house that Jack built|the malt that lay in|the rat that ate|the cat that killed
the dog that worried|the cow with the crumpled horn that tossed|the maiden all forlorn that milked
the man all tattered and torn that kissed|the priest all shaven and shorn that married
the cock that crowed in the morn that waked|the farmer sowing his corn that kept"""
_PARTS = _LINES.replace("\n", "|").split("|")

# An English nursery rhyme: each verse puts a new line before those of the previous verse
RHYME = "".join(
    "This is " + "\n".join(reversed(_PARTS[: last + 1])) + ".\n\n" for last in range(len(_PARTS))
)

TITLE = "The Python language reference (the topics of Python's own help)"
LICENCE = (
    "Copyright © 2001 Python Software Foundation. Licensed under the PSF License Agreement "
    "(PSF-2.0); the examples in it also under the Zero-Clause BSD licence. "
    "See https://docs.python.org/3/license.html"
)


def python_reference() -> str:
    """Return the help topics sorted by name, separated by blank lines: about 465,000 characters.

    The text differs slightly between versions of Python.

    Raises:
        TextError: this Python was built without the topics.

    >>> text = python_reference()
    >>> len(text) > 300_000 and "lambda" in text
    True
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise TextError(
            "this Python has no pydoc_data, and so no language reference",
            cause="a minimal build of Python",
            remedy="name a text file of your own, or install the full standard library",
        ) from None
    return "\n".join(topics[name].rstrip("\n") + "\n" for name in sorted(topics))
