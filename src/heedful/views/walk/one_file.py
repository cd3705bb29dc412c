"""The walk as one file that opens anywhere, with no network.

A variant of attention is computed there, on any sentence: the page is given the words of the steps
and the numbers that do not depend on the sentence: the tables of weights, the vectors that document
002 (after Raschka) prints, the positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.explain import VARIANTS, Explanation, Stage, document_004, explain
from heedful.explain.variants import DOCUMENT
from heedful.text.example_texts import SECOND, SENTENCE
from heedful.views.bundler import element, shell
from heedful.views.explorer.wire import packed
from heedful.views.walk.page_data import about, as_bytes, described_stage, with_places

PAGE = Path(__file__).parent / "page"
MOST = 40  # words of a sentence that is typed into the page
TABLES = 100_000  # numbers of all tables of weights
MARK = "unheard"  # a word that document 002 does not print
FEW = (3, 4)  # words of a text, and of the second one
GROWN = {2: "N", 4: "M"}  # by how many words each is longer in another try; what is said there


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
    begin, end = shell(
        f"{offered[first].label} · heedful", PAGE / "file_source.js", [PAGE / "style.css"]
    )
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


def is_small(found: Explanation) -> bool:
    """Whether a page computes a variant's walk in a moment, with each letter that is typed."""
    tables = sum(math.prod(stage.shape) for stage in found.stages if stage.rows == "width")
    return tables <= TABLES and max(len(found.tokens), len(found.memory)) <= MOST


def as_typed(variant: str, **options: Any) -> dict[str, Any]:
    """The words and tables of a variant.

    Args:
        variant: a name in `VARIANTS`.
        options: as `explain`, but for the texts: dim, heads, head_dim, head, seed, positions.
    """
    first, second = GROWN
    more = (FEW[0] + first, FEW[1] + second)
    short, longer = (_of(counts, variant, options) for counts in (FEW, more))
    stages = list(short.stages)
    width = short.stages[0].shape[-1]
    return {
        **about(short),
        "notes": _notes(variant, options),
        "seed": options.get("seed", 0),
        "width": width,
        "printed": DOCUMENT if width == len(next(iter(DOCUMENT.values()))) else {},
        "most": MOST,
        "stages": [
            {
                **described_stage(stages, stage),
                **_sizes(stage, other),
                **_numbers(stage, variant, options),
            }
            for stage, other in zip(stages, longer.stages, strict=True)
        ],
    }


def _of(counts: tuple[int, int], variant: str, options: dict[str, Any]) -> Explanation:
    text, second = (" ".join([MARK] * count) for count in counts)
    return _explained(text, second, variant, options)


def _explained(text: str, second: str, variant: str, options: dict[str, Any]) -> Explanation:
    memory = second if variant == "cross" else None
    return explain(text, variant, memory=memory, **options)


def _sizes(stage: Stage, other: Stage) -> dict[str, Any]:
    """Shapes in which the number of words stands as N, that of the second text's as M."""
    return {
        "shape": _open(stage.shape, other.shape),
        "chain": [_open(*pair) for pair in zip(stage.chain, other.chain, strict=True)],
    }


def _open(shape: tuple[int, ...], other: tuple[int, ...]) -> list[int | str]:
    return [a if a == b else GROWN[b - a] for a, b in zip(shape, other, strict=True)]


def _numbers(stage: Stage, variant: str, options: dict[str, Any]) -> dict[str, Any]:
    """Numbers that are the same for all sentences, and the text of a formula."""
    found: dict[str, Any] = {}
    if stage.rows == "width":
        found["numbers"] = stage.numbers().tolist()
    if stage.kind == "positions":
        longest = _of((MOST, MOST), variant, options)
        found["numbers"] = longest.stage(stage.name).numbers().tolist()
    if stage.how is not None:
        found["text"] = with_places(stage.how(0, 0, 0)).text
    return found


def _notes(variant: str, options: dict[str, Any]) -> dict[str, Any]:
    """What is said of vectors that are all printed, partly, or not at all."""
    word = next(iter(DOCUMENT))
    texts = {"all": word, "some": f"{word} {MARK}", "none": MARK}
    said = {
        name: list(_explained(text, text, variant, options).notes) for name, text in texts.items()
    }
    return {**said, "word": word}
