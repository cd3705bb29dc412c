"""The text that is always there: the Python language reference inside CPython.

`pydoc_data.topics` holds the chapters that `help("topics")` shows; nothing is fetched.
"""

from __future__ import annotations

from heedful.errors import TextError

TITLE = "The Python language reference (the topics of Python's own help)"
LICENCE = (
    "Copyright © 2001 Python Software Foundation. Licensed under the PSF License Agreement "
    "(PSF-2.0); the examples in it also under the Zero-Clause BSD licence. "
    "See https://docs.python.org/3/license.html"
)


def python_reference() -> str:
    """The topics sorted by name, with a blank line between: some 465,000 characters.

    The text is that of the running Python, so it differs a little between versions.

    Raises:
        TextError: this Python was built without it.

    >>> text = python_reference()
    >>> len(text) > 300_000 and "lambda" in text
    True
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise TextError(
            "this Python has no pydoc_data, and with it no language reference",
            cause="a minimal build of Python",
            remedy="name a text file of your own, or install the full standard library",
        ) from None
    return "\n".join(topics[name].rstrip("\n") + "\n" for name in sorted(topics))
