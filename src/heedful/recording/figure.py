"""Calls as a picture: a line for each layer, its heads beside each other.

A map that is longer than a picture has room for is pooled, and never built whole.
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
from heedful.ops.masked_cells import hidden_cells
from heedful.recording.call import Call
from heedful.recording.checks import is_whole, nothing_recorded
from heedful.recording.module_names import side_of
from heedful.recording.proof import guesses, in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {  # of an encoder–decoder, in the order in which they are drawn
    "encoder": "encoder: the source looks at itself",
    "decoder": "decoder: the target looks back at itself",
    "cross": "cross-attention: the target looks at the source",
}
SEEING = ("vision", "visual", "image", "vit", "patch")  # in the name of a module
CELLS = 512  # of a side, where each is drawn
Tell = Callable[[float], None]


class Chosen(NamedTuple):
    """Which calls and heads are drawn; None is all. part: one of `PARTS`."""

    layers: Iterable[int] | int | None = None
    heads: Iterable[int] | int | None = None
    part: str | None = None
    pass_index: int | None = None


class Lines(NamedTuple):
    """Calls of one shape, with their names, that make a block of the picture."""

    calls: list[Call]
    names: list[str]
    heads: list[int]
    heading: str | None
    part: str | None


def picture(
    calls: Sequence[Call], chosen: Chosen, *, reduce: str = "max", notes: Sequence[str] = (),
    size: float | None = None, progress: Tell = lambda share: None, **look: Any,
) -> Figure:  # fmt: skip
    """The figure of these calls.

    They are those of one sequence, of which `chosen` says which are drawn. `notes` stand beneath;
    `look` are arguments of `heedful.pictures.head_grid.draw`; others, and errors, as in
    `Recording.plot`.
    """
    from heedful.pictures import head_grid
    from heedful.pictures.page_layout import Block, Frame, Line, cells

    wanted = _wanted(calls, chosen)
    groups = _grouped(wanted, calls, _numbers(chosen.heads, "head"))
    blocks, remarks, done = [], list(notes), 0
    for group in groups:
        _, N, M = group.calls[0].shape
        most = cells(Frame(len(group.calls), len(group.heads), (N, M)), size)
        lines = []
        for call, name in zip(group.calls, group.names, strict=True):
            if call.proof == "refuted":
                remarks.append(f"{name} is refuted, and not drawn: {call.why}")
                lines.append(Line(name, [None] * len(group.heads)))
            else:
                lines.append(Line(name, _maps(call, group.heads, most, reduce)))
            done += 1
            progress(done / len(wanted))
        blocks.append(Block(lines, group.heads, *_axes(group, most), group.heading,
                            _borders(group.calls[0], most), (N, M)))  # fmt: skip
        if max(N, M) > most:
            word, (queries, keys) = "largest" if reduce == "max" else "mean", _sizes(N, M, most)
            remarks.append(f"pooled: a cell is the {word} of {queries} × {keys} weights (queries × "
                           f"keys) of a map of {N:,} × {M:,}")  # fmt: skip
        elif not group.part and patch_grid(group.calls[0]):
            tokens = f"{N:,} tokens without text"
            remarks.append(f"{tokens}, as many as an image's patches, named as those")
    remarks += [in_words(wanted), *guesses(wanted)]
    return head_grid.draw(blocks, size=size, notes=list(dict.fromkeys(remarks)), **look)


def _wanted(calls: Sequence[Call], chosen: Chosen) -> list[Call]:
    """The calls that are drawn."""
    if not calls:
        raise nothing_recorded()
    wanted = [call for call in calls if all(call.shape[1:])]
    if not wanted:
        raise RunError(
            "a text of which no token is left",
            expected="at least one that is no padding",
            cause="an attention_mask that hides all of it",
            remedy="draw another text: recording.sequences has them all",
        )
    if chosen.pass_index is not None:
        wanted = _with(wanted, lambda call: call.pass_index, [chosen.pass_index], "pass")
    if chosen.part is not None:
        if chosen.part not in PARTS:
            raise ArgumentError(f"part={chosen.part!r}", expected="encoder, decoder or cross")
        wanted = _with(wanted, lambda call: part_of(call, calls), [chosen.part], "part")
    head_grid = _numbers(chosen.layers, "layer")
    return (
        wanted if head_grid is None else _with(wanted, lambda call: call.layer, head_grid, "layer")
    )


def _with(calls: list[Call], of: Callable[[Call], Any], wanted: list, what: str) -> list[Call]:
    _check_known(wanted, list(dict.fromkeys(of(call) for call in calls)), what)
    return [call for call in calls if of(call) in wanted]


def _check_known(wanted: Iterable, known: list, what: str) -> None:
    for number in wanted:
        if number not in known:
            raise ArgumentError(f"{what} {number}", expected=_listed(known, what))


def _listed(known: list, what: str) -> str:
    if all(number is None for number in known):
        only = ", which only an encoder–decoder has" if what == "part" else ""
        return f"no {what}: these calls have none{only}"
    if all(map(is_whole, known)) and known == list(range(known[0], known[-1] + 1)):
        several = len(known) > 1
        return f"{what}s from {known[0]} to {known[-1]}" if several else f"{what} {known[0]}"
    return f"one of {', '.join(map(str, known))}"


def _numbers(given: Iterable[int] | int | None, what: str) -> list[int] | None:
    if given is None:
        return None
    several = [given] if is_whole(given) else given
    numbers = list(several) if isinstance(several, Iterable) else []
    if not numbers or not all(map(is_whole, numbers)):
        raise ArgumentError(f"{what}s={given!r}", expected="a number, a list of them, or a range")
    return [int(number) for number in numbers]


def part_of(call: Call, calls: Iterable[Call]) -> str | None:
    """Which attention of an encoder–decoder a call is; None in another model."""
    if not any(other.kind == "cross" for other in calls):
        return None
    if call.kind == "cross":
        return "cross"
    return side_of(call.name) or ("decoder" if call.kind == "causal" else "encoder")


def _grouped(calls: list[Call], every: Sequence[Call], heads: list[int] | None) -> list[Lines]:
    """Calls of one part, pass and shape together; parts in the order of `PARTS`.

    `every` call tells whether there are parts, also where those of one alone are drawn.
    """
    groups: dict[tuple, list[Call]] = {}
    parts = {id(call): part_of(call, every) for call in calls}
    passes = len({call.pass_index for call in calls}) > 1
    for call in calls:
        where = (parts[id(call)], call.pass_index if passes else 0, call.shape[1:])
        groups.setdefault(where, []).append(call)
    _check_known(heads or (), sorted({head for call in calls for head in call.heads}), "head")
    order, blocks = [None, *PARTS], []
    for place in sorted(groups, key=lambda place: order.index(place[0])):
        (part, number, shape), group = place, groups[place]
        every_head = sorted({head for call in group for head in call.heads})
        drawn = every_head if heads is None else [head for head in every_head if head in heads]
        if drawn:
            heading = [PARTS[part]] if part else []
            heading += [f"pass {number}"] if passes else []
            if not heading and len(groups) > 1:
                heading = [f"{_tower(group)}: {shape[0]:,} queries, {shape[1]:,} keys"]
            blocks.append(Lines(group, _names(group), drawn, ", ".join(heading) or None, part))
    return blocks


def _tower(calls: list[Call]) -> str:
    """What the names of modules have in common, up to a point."""
    columns = zip(*(call.name.split(".") for call in calls), strict=False)
    same = takewhile(lambda words: len(set(words)) == 1 and not words[0].isdecimal(), columns)
    return ".".join(words[0] for words in same) or calls[0].name


def _names(calls: list[Call]) -> list[str]:
    """What each line is called: its layer; its module where it has none; and its call."""
    plain = [call.name if call.layer is None else f"layer {call.layer}" for call in calls]
    count = Counter(plain)
    return [
        name if count[name] == 1 else f"{name}, call {call.index}"
        for name, call in zip(plain, calls, strict=True)
    ]


def _maps(call: Call, heads: list[int], most: int, reduce: str) -> list[Any]:
    """The map of each head, hidden cells masked; None where the call has no such head."""
    drawn = [head for head in heads if head in call.heads]
    if not drawn:
        return [None] * len(heads)
    N, M = call.shape[1:]

    def of(head: int | None) -> Tensor:
        is_small = max(N, M) <= most
        return call.weights(head) if is_small else call.heatmap(most, head=head, reduce=reduce)

    # all at once cost less than each by itself
    weights = of(None) if drawn == call.heads else torch.stack([of(head) for head in drawn])
    hidden = hidden_cells(call.causes, _sizes(N, M, most)).numpy()
    maps = {}
    for head, table in zip(drawn, weights.float().cpu().numpy(), strict=True):
        mask = hidden[call.heads.index(head) if len(hidden) > 1 else 0]
        maps[head] = np.ma.masked_array(table, mask)
    return [maps.get(head) for head in heads]


def _sizes(N: int, M: int, most: int) -> tuple[int, int]:
    """How many queries, and how many keys, a cell has."""
    return -(-N // most), -(-M // most)


def _axes(group: Lines, most: int) -> tuple[list[str], list[str], tuple[str, str]]:
    """The labels of rows and columns, and what the two axes are called."""
    from heedful.pictures.labels import names, places

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
            return places(-(-count // size), size)
        return names(tokens) if tokens is not None else grid or places(count)

    queries, keys = _sizes(N, M, most)
    return labels(call.query_tokens, N, queries), labels(call.key_tokens, M, keys), axes


def _borders(call: Call, most: int) -> tuple[list[int], list[int]]:
    """Before which rows and columns another text begins."""
    from heedful.pictures.labels import borders

    _, N, M = call.shape
    sides = zip((call.query_tokens, call.key_tokens), _sizes(N, M, most), strict=True)
    queries, keys = (
        [] if tokens is None else sorted({place // size for place in borders(tokens)})
        for tokens, size in sides
    )
    return queries, keys


def patch_grid(call: Call) -> list[str] | None:
    """The names of an image's patches, where the call's tokens have none and are so many.

    A square number of tokens, or one or two more (a class token, and that of distillation), that
    look at each other, in a model whose texts would have ids or whose name says that it sees.
    """
    from heedful.pictures.labels import patches

    _, N, M = call.shape
    if call.key_tokens is not None or call.ids is not None or call.kind != "self" or N != M:
        return None
    if not (call.door.startswith("transformers") or any(word in call.name for word in SEEING)):
        return None
    for before in (1, 0, 2):
        side = isqrt(max(0, M - before))
        if side > 1 and side * side == M - before:
            return patches(side, side, before)
    return None


def scores_of(call: Call, head: int) -> tuple[Tensor, Tensor]:
    """One head's scores before and after the mask, (N, M) each; −inf where it hides."""
    N, M = call.shape[1:]
    if max(N, M) > CELLS:
        raise ArgumentError(
            f"scores of {N:,} × {M:,}",
            expected=f"at most {CELLS:,} queries and keys",
            remedy="a shorter text, or the heads, which are pooled",
        )
    hidden = hidden_cells(call.causes, (1, 1))
    if not hidden.any():
        raise ArgumentError(
            f"scores of {call.name}",
            expected="attention with a mask, such as a GPT's",
            cause="no token is hidden from another here: before and after the mask all is the same",
            remedy="draw the weights, the heads",
        )
    place = call.heads.index(head)
    of = call.checked().of_heads(slice(place, place + 1)).in_precision()
    scaled = scores(of._replace(mask=None), torch.arange(N, device="cpu"))[0].float().cpu()
    table = hidden[place if len(hidden) > 1 else 0]
    return scaled, scaled.masked_fill(table, -torch.inf)


def scores_picture(calls: Sequence[Call], chosen: Chosen, title: str | None = None) -> Figure:
    """The scores of the first chosen head of the first chosen call that has a mask."""
    from heedful.pictures import plots

    wanted = _wanted(calls, chosen)
    call = next((call for call in wanted if call.kind == "causal"), wanted[0])
    head, *_ = _numbers(chosen.heads, "head") or call.heads
    _check_known([head], call.heads, "head")
    _, N, M = call.shape
    return plots.scores(
        *scores_of(call, head),
        call.query_tokens or list(map(str, range(N))),
        key_tokens=call.key_tokens or list(map(str, range(M))),
        title=title or f"{_names([call])[0]}, head {head}",
        notes=[in_words([call]), *guesses([call])],
    )
