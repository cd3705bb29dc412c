"""A walk (the steps of `heedful explain`) as one HTML file that needs no network.

For a variant of attention, the page computes the walk of any sentence itself. The file contains the
texts of the steps and the numbers that do not depend on the sentence: weight matrices, position
encodings, and the word vectors of document 002 (after Raschka).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heedful.explain import VARIANTS, Explanation, Stage, document_004, explain
from heedful.explain.variants import VECTORS_002
from heedful.loaded import LoadedModel
from heedful.text.example_texts import SECOND, SENTENCE
from heedful.views.bundler import element, shell
from heedful.views.explorer.wire import packed
from heedful.views.walk.model_data import model_data
from heedful.views.walk.page_data import all_stages, computed_stage_data, packed_walk, walk_data

PAGE = Path(__file__).parent / "page"
MAX_WORDS = 40  # of a sentence that is typed into the page
LONGEST = 10_000  # characters in the text box of app.js
MAX_WEIGHTS = 100_000  # numbers in all weight matrices of a variant that the page computes
UNPRINTED = "unheard"  # a word without a vector in document 002
SAMPLE_LENGTHS = (3, 4)  # words of two sample texts, for the sentence and the second sentence
GROWTH = {2: "N", 4: "M"}  # words added to a sample: the letter of the axes that grow by as many


class PageWalk(NamedTuple):
    """A walk in the page: computed by the page from typed text (`typed`), or stored as numbers."""

    label: str
    typed: bool
    data: bytes


def variant_walks(first: Explanation, options: dict[str, Any]) -> tuple[list[PageWalk], int]:
    """Return the walks of all variants and of document 004 (Zhang), and the index of `first`.

    Args:
        first: the walk that the page shows first. It is stored as numbers if its text or its
            weights are too large to be computed while a reader types.
        options: the options of `heedful.explain.explain` for `first`. The other variants use the
            same seed and positions, and their default sizes.
    """
    chosen = options.get("variant", "simple")
    sizes = {name: value for name, value in options.items() if name not in ("variant", "memory")}
    shared = {name: value for name, value in sizes.items() if name in ("seed", "positions")}
    walks = [
        PageWalk(name, True, packed(variant_data(name, **(sizes if name == chosen else shared))))
        if name != chosen or is_small(first)
        else PageWalk(name, False, packed_walk(first))
        for name in VARIANTS
    ]
    printed = PageWalk("document 004", False, packed_walk(document_004()))
    return [*walks, printed], list(VARIANTS).index(chosen)


def model_walks(explanation: Explanation, opened: LoadedModel | None = None) -> list[PageWalk]:
    """Return the walk through a model: of any text if possible, else stored as numbers.

    Args:
        explanation: the walk of a text.
        opened: the model with its tokenizer; None always stores the walk.
    """
    label = explanation.title.partition(":")[0]
    if opened is not None:
        data = model_data(opened, explanation)
        if isinstance(data, bytes):
            return [PageWalk(label, True, data)]
        explanation = dataclasses.replace(explanation, notes=(*explanation.notes, data))
    return [PageWalk(label, False, packed_walk(explanation))]


def page(
    walks: Sequence[PageWalk], *, first: int = 0, text: str = SENTENCE, memory: str = SECOND
) -> bytes:
    """Return the HTML page.

    Args:
        walks: the walks that a reader can choose from.
        first: index of the walk that is shown first.
        text: the initial sentence.
        memory: the initial second sentence, for cross-attention.
    """
    begin, end = shell(
        f"{walks[first].label} · heedful", PAGE / "file_source.js", [PAGE / "style.css"]
    )
    header = packed(
        {
            "start": first,
            "text": text[:LONGEST],
            "memory": memory,
            "walks": [
                {"label": walk.label, "typed": walk.typed, "bytes": len(walk.data)}
                for walk in walks
            ],
        }
    )
    return begin + element("walks", header + b"".join(walk.data for walk in walks)) + end


def is_small(explanation: Explanation) -> bool:
    """Whether the page can recompute a variant's walk at every keystroke."""
    weights = sum(math.prod(stage.shape) for stage in explanation.stages if stage.rows == "width")
    words = max(len(explanation.tokens), len(explanation.memory))
    return weights <= MAX_WEIGHTS and words <= MAX_WORDS


def variant_data(variant: str, **options: Any) -> dict[str, Any]:
    """Return the texts and weight matrices from which the page computes a variant.

    Args:
        variant: a name in `VARIANTS`.
        options: those of `explain` except the texts: dim, heads, head_dim, head, seed, positions.
    """
    first, second = GROWTH
    more = (SAMPLE_LENGTHS[0] + first, SAMPLE_LENGTHS[1] + second)
    short, longer = (_sample(counts, variant, options) for counts in (SAMPLE_LENGTHS, more))
    stages = all_stages(short)
    width = short.stages[0].shape[-1]
    return {
        **walk_data(short, stages),
        "notes": _notes(variant, options),
        "seed": options.get("seed", 0),
        "width": width,
        "printed": VECTORS_002 if width == len(next(iter(VECTORS_002.values()))) else {},
        "most": MAX_WORDS,
        "stages": [
            {
                **computed_stage_data(stages, stage, other, GROWTH),
                **_fixed_numbers(stage, variant, options),
            }
            for stage, other in zip(stages, longer.stages, strict=True)
        ],
    }


def _sample(counts: tuple[int, int], variant: str, options: dict[str, Any]) -> Explanation:
    text, second = (" ".join([UNPRINTED] * count) for count in counts)
    return _explain(text, second, variant, options)


def _explain(text: str, second: str, variant: str, options: dict[str, Any]) -> Explanation:
    memory = second if variant == "cross" else None
    return explain(text, variant, memory=memory, **options)


def _fixed_numbers(stage: Stage, variant: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers that do not depend on the sentence."""
    if stage.rows == "width":
        return {"numbers": stage.numbers().tolist()}
    if stage.kind == "positions":
        longest = _sample((MAX_WORDS, MAX_WORDS), variant, options)
        return {"constants": {"table": longest.stage(stage.name).numbers().tolist()}}
    return {}


def _notes(variant: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the notes for texts of which all, some or no words have vectors in document 002."""
    word = next(iter(VECTORS_002))
    texts = {"all": word, "some": f"{word} {UNPRINTED}", "none": UNPRINTED}
    notes = {
        name: list(_explain(text, text, variant, options).notes) for name, text in texts.items()
    }
    return {**notes, "word": word}
