"""Figures of calls: a row of maps for each layer, a column for each head.

A map with more weights than its place in the figure can show is pooled, and never built in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops.inputs import scores
from heedful.ops.masked_cells import masked_cells
from heedful.recording.call import Call
from heedful.recording.checks import is_integer, nothing_recorded
from heedful.recording.module_names import side_of
from heedful.recording.progress import OnProgress
from heedful.recording.proof import layout_warnings, proof_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {  # the attention of an encoder–decoder, in drawing order
    "encoder": "encoder: the source looks at itself",
    "decoder": "decoder: the target looks back at itself",
    "cross": "cross-attention: the target looks at the source",
}
VISION = ("vision", "visual", "image", "vit", "patch")  # in the names of modules that read images
MAX_SCORES = 512  # the maximum number of queries, and of keys, in a table of scores


class Selection(NamedTuple):
    """What to draw; None: all. layers, heads: numbers in the model. part: a key of `PARTS`."""

    layers: Iterable[int] | int | None = None
    heads: Iterable[int] | int | None = None
    part: str | None = None
    pass_index: int | None = None


class Group(NamedTuple):
    """Calls with maps of one size, drawn as one block of the figure. names: labels of the calls."""

    calls: list[Call]
    names: list[str]
    heads: list[int]
    heading: str | None
    part: str | None


def picture(
    calls: Sequence[Call], selection: Selection, *, reduce: str = "max", notes: Sequence[str] = (),
    size: float | None = None, progress: OnProgress = lambda share: None, **style: Any,
) -> Figure:  # fmt: skip
    """Draw the selected ones of `calls`, which are the calls on one text, or on a part of it.

    `notes` are printed below the maps; `style` are arguments of `heedful.pictures.head_grid.draw`.
    The other arguments, and the errors, are as in `Recording.plot`.
    """
    from heedful.pictures import head_grid
    from heedful.pictures.page_layout import Block, Frame, Line, cells

    selected = _selected(calls, selection)
    groups = _groups(selected, calls, _numbers(selection.heads, "head"))
    blocks, remarks, completed = [], list(notes), 0
    for group in groups:
        _, N, M = group.calls[0].shape
        side = cells(Frame(len(group.calls), len(group.heads), (N, M)), size)
        lines = []
        for call, name in zip(group.calls, group.names, strict=True):
            if call.proof == "refuted":
                remarks.append(f"{name} is refuted, and not drawn: {call.why}")
                lines.append(Line(name, [None] * len(group.heads)))
            else:
                lines.append(Line(name, _maps(call, group.heads, side, reduce)))
            completed += 1
            progress(completed / len(selected))
        blocks.append(Block(lines, group.heads, *_axes(group, side), group.heading,
                            _borders(group.calls[0], side), (N, M)))  # fmt: skip
        if max(N, M) > side:
            word, (queries, keys) = "largest" if reduce == "max" else "mean", _sizes(N, M, side)
            remarks.append(f"pooled: a cell is the {word} of {queries} × {keys} weights (queries × "
                           f"keys) of a map of {N:,} × {M:,}")  # fmt: skip
        elif not group.part and patch_grid(group.calls[0]):
            remarks.append(f"{N:,} tokens without text, assumed to be the patches of an image")
    remarks += [proof_summary(selected), *layout_warnings(selected)]
    return head_grid.draw(blocks, size=size, notes=list(dict.fromkeys(remarks)), **style)


def _selected(calls: Sequence[Call], selection: Selection) -> list[Call]:
    if not calls:
        raise nothing_recorded()
    selected = [call for call in calls if all(call.shape[1:])]
    if not selected:
        raise RunError(
            "a text without a token",
            expected="at least one token that is not padding",
            cause="an attention_mask that masks every token",
            remedy="draw another text of recording.sequences",
        )
    if selection.pass_index is not None:
        selected = _keep(selected, lambda call: call.pass_index, [selection.pass_index], "pass")
    if selection.part is not None:
        if selection.part not in PARTS:
            raise ArgumentError(f"part={selection.part!r}", expected="encoder, decoder or cross")
        selected = _keep(selected, lambda call: part_of(call, calls), [selection.part], "part")
    layers = _numbers(selection.layers, "layer")
    return selected if layers is None else _keep(selected, lambda call: call.layer, layers, "layer")


def _keep(calls: list[Call], key: Callable[[Call], Any], values: list, noun: str) -> list[Call]:
    _check_values(values, list(dict.fromkeys(key(call) for call in calls)), noun)
    return [call for call in calls if key(call) in values]


def _check_values(values: Iterable, available: list, noun: str) -> None:
    for value in values:
        if value not in available:
            raise ArgumentError(f"{noun} {value}", expected=_choices(available, noun))


def _choices(available: list, noun: str) -> str:
    if all(value is None for value in available):
        only = "; only an encoder–decoder has parts" if noun == "part" else ""
        return f"no {noun}: these calls have none{only}"
    first, last = available[0], available[-1]
    if all(map(is_integer, available)) and available == list(range(first, last + 1)):
        return f"{noun}s from {first} to {last}" if len(available) > 1 else f"{noun} {first}"
    return f"one of {', '.join(map(str, available))}"


def _numbers(argument: Iterable[int] | int | None, noun: str) -> list[int] | None:
    if argument is None:
        return None
    items = [argument] if is_integer(argument) else argument
    numbers = list(items) if isinstance(items, Iterable) else []
    if not numbers or not all(map(is_integer, numbers)):
        raise ArgumentError(f"{noun}s={argument!r}", expected="a number, a list or a range")
    return [int(number) for number in numbers]


def part_of(call: Call, calls: Iterable[Call]) -> str | None:
    """Return the key of `PARTS` for a call of an encoder–decoder; None for another model."""
    if not any(other.kind == "cross" for other in calls):
        return None
    if call.kind == "cross":
        return "cross"
    return side_of(call.name) or ("decoder" if call.kind == "causal" else "encoder")


def _groups(calls: list[Call], all_calls: Sequence[Call], heads: list[int] | None) -> list[Group]:
    """Group calls by part of an encoder–decoder, in the order of `PARTS`, by pass and by map size.

    `all_calls` are the calls before selection. Calls have parts if any of these is cross-attention.
    """
    groups: dict[tuple, list[Call]] = {}
    parts = {id(call): part_of(call, all_calls) for call in calls}
    passes = len({call.pass_index for call in calls}) > 1
    for call in calls:
        key = (parts[id(call)], call.pass_index if passes else 0, call.shape[1:])
        groups.setdefault(key, []).append(call)
    _check_values(heads or (), sorted({head for call in calls for head in call.heads}), "head")
    order, blocks = [None, *PARTS], []
    for key in sorted(groups, key=lambda key: order.index(key[0])):
        (part, number, shape), group = key, groups[key]
        all_heads = sorted({head for call in group for head in call.heads})
        drawn = all_heads if heads is None else [head for head in all_heads if head in heads]
        if drawn:
            heading = [PARTS[part]] if part else []
            heading += [f"pass {number}"] if passes else []
            if not heading and len(groups) > 1:
                heading = [f"{_common_name(group)}: {shape[0]:,} queries, {shape[1]:,} keys"]
            blocks.append(Group(group, _names(group), drawn, ", ".join(heading) or None, part))
    return blocks


def _common_name(calls: list[Call]) -> str:
    """Return the common beginning of the modules' names up to the first number, else one name."""
    columns = zip(*(call.name.split(".") for call in calls), strict=False)
    common = takewhile(lambda words: len(set(words)) == 1 and not words[0].isdecimal(), columns)
    return ".".join(words[0] for words in common) or calls[0].name


def _names(calls: list[Call]) -> list[str]:
    """Return a label for each call: its layer, else its module; if not unique, also its index."""
    plain = [call.name if call.layer is None else f"layer {call.layer}" for call in calls]
    count = Counter(plain)
    return [
        name if count[name] == 1 else f"{name}, call {call.index}"
        for name, call in zip(plain, calls, strict=True)
    ]


def _maps(call: Call, heads: list[int], side: int, reduce: str) -> list[Any]:
    """Return each head's map of at most side × side cells, or None for a head the call lacks."""
    drawn = [head for head in heads if head in call.heads]
    if not drawn:
        return [None] * len(heads)
    N, M = call.shape[1:]

    def cells(head: int | None) -> Tensor:
        is_small = max(N, M) <= side
        return call.weights(head) if is_small else call.heatmap(side, head=head, reduce=reduce)

    # computing all heads together takes less time than separately
    weights = cells(None) if drawn == call.heads else torch.stack([cells(head) for head in drawn])
    masked = masked_cells(call.causes, _sizes(N, M, side)).numpy()
    maps = {}
    for head, table in zip(drawn, weights.float().cpu().numpy(), strict=True):
        mask = masked[call.heads.index(head) if len(masked) > 1 else 0]
        maps[head] = np.ma.masked_array(table, mask)
    return [maps.get(head) for head in heads]


def _sizes(N: int, M: int, side: int) -> tuple[int, int]:
    """Return how many queries, and how many keys, a cell of a side × side table pools."""
    return -(-N // side), -(-M // side)


def _axes(group: Group, side: int) -> tuple[list[str], list[str], tuple[str, str]]:
    """Return the labels of rows and columns, and the names of the two axes."""
    from heedful.pictures.labels import names, position_labels

    call = group.calls[0]
    _, N, M = call.shape
    grid = None if group.part else patch_grid(call)
    axes = {
        "encoder": ("queries (source)", "keys (source)"),
        "decoder": ("queries (target)", "keys (target)"),
        "cross": ("queries (target)", "keys (source)"),
    }.get(group.part or "", ("queries", "keys"))
    if grid:
        axes = ("queries (patches)", "keys (patches)")

    def labels(tokens: list[str] | None, count: int, size: int) -> list[str]:
        if size > 1:
            return position_labels(-(-count // size), size)
        return names(tokens) if tokens is not None else grid or position_labels(count)

    queries, keys = _sizes(N, M, side)
    return labels(call.query_tokens, N, queries), labels(call.key_tokens, M, keys), axes


def _borders(call: Call, side: int) -> tuple[list[int], list[int]]:
    """Return the rows and columns of cells in which a second or later text of a prompt begins."""
    from heedful.pictures.labels import borders

    _, N, M = call.shape
    axes = zip((call.query_tokens, call.key_tokens), _sizes(N, M, side), strict=True)
    queries, keys = (
        [] if tokens is None else sorted({index // size for index in borders(tokens)})
        for tokens, size in axes
    )
    return queries, keys


def patch_grid(call: Call) -> list[str] | None:
    """Return names of image patches for a call that seems to attend over patches; else None.

    Such a call is self-attention without token ids, through a door of transformers or in a module
    named like a vision model. It has n² tokens, or 1 or 2 more (class and distillation tokens).
    """
    from heedful.pictures.labels import patches

    _, N, M = call.shape
    if call.key_tokens is not None or call.ids is not None or call.kind != "self" or N != M:
        return None
    if not (call.door.startswith("transformers") or any(word in call.name for word in VISION)):
        return None
    for extra in (1, 0, 2):
        rows = isqrt(max(0, M - extra))
        if rows > 1 and rows * rows == M - extra:
            return patches(rows, rows, extra)
    return None


def scores_of(call: Call, head: int) -> tuple[Tensor, Tensor]:
    """Return a head's scores before and after the mask (−inf where masked), (N, M) each."""
    N, M = call.shape[1:]
    if max(N, M) > MAX_SCORES:
        raise ArgumentError(
            f"scores of {N:,} × {M:,}",
            expected=f"at most {MAX_SCORES:,} queries and keys",
            remedy="use a shorter text, or draw the weights, which are pooled",
        )
    masked = masked_cells(call.causes, (1, 1))
    if not masked.any():
        raise ArgumentError(
            f"scores of {call.name}",
            expected="attention with a mask, such as a GPT's",
            cause="no pair is masked: the scores before and after the mask are the same",
            remedy="draw the weights instead",
        )
    index = call.heads.index(head)
    inputs = call.checked_inputs().of_heads(slice(index, index + 1)).upcast()
    scaled = scores(inputs._replace(mask=None), torch.arange(N, device="cpu"))[0].float().cpu()
    return scaled, scaled.masked_fill(masked[index if len(masked) > 1 else 0], -torch.inf)


def scores_picture(calls: Sequence[Call], selection: Selection, title: str | None = None) -> Figure:
    """Draw scores of the first selected head in the first causal call (if none, the first call)."""
    from heedful.pictures import plots

    selected = _selected(calls, selection)
    call = next((call for call in selected if call.kind == "causal"), selected[0])
    head, *_ = _numbers(selection.heads, "head") or call.heads
    _check_values([head], call.heads, "head")
    _, N, M = call.shape
    return plots.scores(
        *scores_of(call, head),
        call.query_tokens or list(map(str, range(N))),
        key_tokens=call.key_tokens or list(map(str, range(M))),
        title=title or f"{_names([call])[0]}, head {head}",
        notes=[proof_summary([call]), *layout_warnings([call])],
    )
