"""The walk as one file that opens anywhere, with no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.explain import Explanation, document_004
from heedful.files import replacing
from heedful.text.examples import SENTENCE
from heedful.views.explorer.wire import packed
from heedful.views.offline_page import element, shell
from heedful.views.walk.page_data import as_bytes
from heedful.views.walk.typed import TYPED, as_typed

PAGE = Path(__file__).parent / "page"


class Offered(NamedTuple):
    """A walk of the page; one that is typed is computed there, on any sentence."""

    label: str
    typed: bool
    data: bytes


def of_variants(options: dict[str, Any]) -> tuple[list[Offered], int]:
    """The variants that the page computes, what document 004 (Zhang) prints; which is first.

    Args:
        options: as `heedful.explain.explain`; with `variant` they are that one's alone.
    """
    chosen = options.get("variant", TYPED[0])
    given = {name: value for name, value in options.items() if name != "variant"}
    offered = [
        Offered(name, True, packed(as_typed(name, **(given if name == chosen else {}))))
        for name in TYPED
    ]
    printed = Offered("document 004", False, as_bytes(document_004()))
    return [*offered, printed], TYPED.index(chosen)


def of_explanation(found: Explanation) -> list[Offered]:
    """The walk of a model, or of a variant that the page does not compute."""
    return [Offered(found.title.partition(":")[0], False, as_bytes(found))]


def write(path: Path, offered: Sequence[Offered], *, first: int = 0, text: str = SENTENCE) -> int:
    """Write the page to a file, whole or not at all; its bytes.

    Args:
        path: the file.
        offered: what the page can show.
        first: which of them it shows first.
        text: the sentence on which the page computes at first.

    Raises:
        SaveError: a place that cannot be written.
    """
    begin, end = shell(f"{offered[first].label} · heedful", PAGE / "filed.js", [PAGE / "style.css"])
    about = packed(
        {
            "start": first,
            "text": text,
            "walks": [
                {"label": one.label, "typed": one.typed, "bytes": len(one.data)} for one in offered
            ],
        }
    )
    data = begin + element("walks", about + b"".join(one.data for one in offered)) + end
    with replacing(path) as part:
        part.write_bytes(data)
    return len(data)
