"""The walk as one file that opens anywhere, with no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.explain import VARIANTS, Explanation, document_004
from heedful.text.examples import SECOND, SENTENCE
from heedful.views.explorer.wire import packed
from heedful.views.offline_page import element, shell
from heedful.views.walk.page_data import as_bytes
from heedful.views.walk.typed import as_typed, is_small

PAGE = Path(__file__).parent / "page"


class Offered(NamedTuple):
    """A walk of the page; one that is typed is computed there, on any sentence."""

    label: str
    typed: bool
    data: bytes


def of_variants(found: Explanation, options: dict[str, Any]) -> tuple[list[Offered], int]:
    """All variants, and what document 004 (Zhang) prints; which is first.

    Args:
        found: the first one's walk. With a longer text, or wider, than a page computes in a moment
            it is given as it is.
        options: with which it was found, as `heedful.explain.explain`. The others have its seed
            and positions, and their own sizes.
    """
    chosen = options.get("variant", "simple")
    own = {name: value for name, value in options.items() if name not in ("variant", "memory")}
    shared = {name: value for name, value in own.items() if name in ("seed", "positions")}
    offered = [
        Offered(name, True, packed(as_typed(name, **(own if name == chosen else shared))))
        if name != chosen or is_small(found)
        else Offered(name, False, as_bytes(found))
        for name in VARIANTS
    ]
    printed = Offered("document 004", False, as_bytes(document_004()))
    return [*offered, printed], list(VARIANTS).index(chosen)


def of_explanation(found: Explanation) -> list[Offered]:
    """The walk of a model."""
    return [Offered(found.title.partition(":")[0], False, as_bytes(found))]


def page(
    offered: Sequence[Offered], *, first: int = 0, text: str = SENTENCE, memory: str = SECOND
) -> bytes:
    """The whole page.

    Args:
        offered: what it can show.
        first: which of them it shows first.
        text: the sentence on which it computes at first.
        memory: the second one, which cross-attention looks at.
    """
    begin, end = shell(f"{offered[first].label} · heedful", PAGE / "filed.js", [PAGE / "style.css"])
    about = packed(
        {
            "start": first,
            "text": text,
            "memory": memory,
            "walks": [
                {"label": one.label, "typed": one.typed, "bytes": len(one.data)} for one in offered
            ],
        }
    )
    return begin + element("walks", about + b"".join(one.data for one in offered)) + end
