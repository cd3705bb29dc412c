"""A variant of attention for a page that computes it itself, on any sentence.

The page is given the words of the steps and the numbers that do not depend on the sentence: the
tables of weights, the vectors that document 002 (after Raschka) prints, the positions.
"""

from __future__ import annotations

from typing import Any

from heedful.explain import Explanation, Stage, explain
from heedful.explain.variants import DOCUMENT
from heedful.views.walk.page_data import about, described_stage, with_places

TYPED = ("simple", "trainable", "causal", "multihead")
MOST = 40  # words of a sentence that is typed into the page
FEW, MORE = 3, 5  # words of two texts; a size in which their steps differ is that of the text
MARK = "unheard"  # a word that document 002 does not print


def as_typed(variant: str, **options: Any) -> dict[str, Any]:
    """The words and tables of a variant.

    Args:
        variant: one of `TYPED`.
        options: as `explain`: dim, heads, head_dim, head, seed, positions.
    """
    short, longer = (_of(count, variant, options) for count in (FEW, MORE))
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


def _of(count: int, variant: str, options: dict[str, Any]) -> Explanation:
    return explain(" ".join([MARK] * count), variant, **options)


def _sizes(stage: Stage, other: Stage) -> dict[str, Any]:
    """Shapes in which the number of words stands as N."""
    return {
        "shape": _open(stage.shape, other.shape),
        "chain": [_open(*pair) for pair in zip(stage.chain, other.chain, strict=True)],
    }


def _open(shape: tuple[int, ...], other: tuple[int, ...]) -> list[int | str]:
    return [a if a == b else "N" for a, b in zip(shape, other, strict=True)]


def _numbers(stage: Stage, variant: str, options: dict[str, Any]) -> dict[str, Any]:
    """Numbers that are the same for all sentences, and the text of a formula."""
    found: dict[str, Any] = {}
    if stage.rows == "width":
        found["numbers"] = stage.numbers().tolist()
    if stage.name == "positions":
        found["numbers"] = _of(MOST, variant, options).stage("positions").numbers().tolist()
    if stage.how is not None:
        found["text"] = with_places(stage.how(0, 0, 0)).text
    return found


def _notes(variant: str, options: dict[str, Any]) -> dict[str, Any]:
    """What is said of vectors that are all printed, partly, or not at all."""
    word = next(iter(DOCUMENT))
    texts = {"all": word, "some": f"{word} {MARK}", "none": MARK}
    said = {name: list(explain(text, variant, **options).notes) for name, text in texts.items()}
    return {**said, "word": word}
