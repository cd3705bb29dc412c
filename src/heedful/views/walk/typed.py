"""A variant of attention for a page that computes it itself, on any sentence.

The page is given the words of the steps and the numbers that do not depend on the sentence: the
tables of weights, the vectors that document 002 (after Raschka) prints, the positions.
"""

from __future__ import annotations

import math
from typing import Any

from heedful.explain import Explanation, Stage, explain
from heedful.explain.variants import DOCUMENT
from heedful.views.walk.page_data import about, described_stage, with_places

MOST = 40  # words of a sentence that is typed into the page
TABLES = 100_000  # numbers of all tables of weights
MARK = "unheard"  # a word that document 002 does not print
FEW = (3, 4)  # words of a text, and of the second one
GROWN = {2: "N", 4: "M"}  # by how many words each is longer in another try; what is said there


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
