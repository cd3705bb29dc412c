"""Calls as a picture: a line for each layer, its heads beside each other.

What is masked, what the axes are and where a text begins is read off the calls. A map that is
longer than a picture has room for is pooled, and never built whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops.causes import scores
from heedful.ops.hidden import hidden_cells
from heedful.recording.call import Call
from heedful.recording.checks import is_whole, nothing_recorded
from heedful.recording.known import guesses, in_words
from heedful.recording.module_names import side_of

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
    calls: Sequence[Call],
    chosen: Chosen,
    *,
    reduce: str = "max",
    notes: Sequence[str] = (),
    size: float | None = None,
    progress: Tell = lambda share: None,
    **look: Any,
) -> Figure:
    """The figure of these calls.

    Args:
        calls: of one sequence, in order.
        chosen: which of them.
        reduce: how a long map is pooled, "max" or "mean".
        notes: what the picture says beneath.
        size: the width in inches.
        progress: is told of the share that is done, 0 to 1.
        look: `title`, `scale`, `highest` and `values` of `heedful.pictures.layers.draw`.

    Raises:
        ArgumentError: a layer, head, part or pass that there is not, or what does not fit a page.
        RunError: nothing was recorded.
    """
    from heedful.pictures import layers
    from heedful.pictures.frames import Block, Frame, Line, cells

    wanted = _asked(calls, chosen)
    groups = _grouped(wanted, calls, _numbers(chosen.heads, "head"))
    blocks, said, done = [], list(notes), 0
    for group in groups:
        _, N, M = group.calls[0].shape
        most = cells(Frame(len(group.calls), len(group.heads), (N, M)), size)
        lines = []
        for call, name in zip(group.calls, group.names, strict=True):
            if call.proof == "refuted":
                said.append(f"{name} is refuted, and not drawn: {call.why}")
                lines.append(Line(name, [None] * len(group.heads)))
            else:
                lines.append(Line(name, _maps(call, group.heads, most, reduce)))
            done += 1
            progress(done / len(wanted))
        blocks.append(Block(lines, group.heads, *_axes(group, most), group.heading,
                            _borders(group.calls[0], most), (N, M)))  # fmt: skip
        said += _pooled(N, M, most, reduce)
        if not group.part and max(N, M) <= most and patch_grid(group.calls[0]):
            said.append(f"{N:,} tokens without text, as many as an image's patches, named as those")
    said += [in_words(wanted), *guesses(wanted)]
    return layers.draw(blocks, size=size, notes=list(dict.fromkeys(said)), **look)


def _asked(calls: Sequence[Call], chosen: Chosen) -> list[Call]:
    """The calls that are drawn.

    Raises:
        ArgumentError: a layer, part or pass that none has.
        RunError: no call.
    """
    if not calls:
        raise nothing_recorded()
    found = [call for call in calls if all(call.shape[1:])]
    if not found:
        raise RunError(
            "a text of which no token is left",
            expected="at least one that is no padding",
            cause="an attention_mask that hides all of it",
            remedy="draw another text: recording.sequences has them all",
        )
    if chosen.pass_index is not None:
        found = _with(found, lambda call: call.pass_index, [chosen.pass_index], "pass")
    if chosen.part is not None:
        if chosen.part not in PARTS:
            raise ArgumentError(f"part={chosen.part!r}", expected="encoder, decoder or cross")
        found = _with(found, lambda call: part_of(call, calls), [chosen.part], "part")
    layers = _numbers(chosen.layers, "layer")
    return found if layers is None else _with(found, lambda call: call.layer, layers, "layer")


def _with(calls: list[Call], of: Callable[[Call], Any], wanted: list, what: str) -> list[Call]:
    known = list(dict.fromkeys(of(call) for call in calls))
    for one in wanted:
        if one not in known:
            raise ArgumentError(f"{what} {one}", expected=_listed(known, what))
    return [call for call in calls if of(call) in wanted]


def _listed(known: list, what: str) -> str:
    if all(one is None for one in known):
        return f"no {what}: these calls have none" + (
            ", which only an encoder–decoder has" if what == "part" else ""
        )
    if all(is_whole(one) for one in known) and known == list(range(known[0], known[-1] + 1)):
        ends = f"{known[0]} to {known[-1]}" if len(known) > 1 else str(known[0])
        return f"{what}{'s from' if len(known) > 1 else ''} {ends}"
    return f"one of {', '.join(str(one) for one in known)}"


def _numbers(given: Iterable[int] | int | None, what: str) -> list[int] | None:
    if given is None:
        return None
    found = [given] if is_whole(given) else given
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise ArgumentError(f"{what}s={given!r}", expected="a number, a list of them, or a range")
    numbers = list(found)
    if not numbers or not all(map(is_whole, numbers)):
        raise ArgumentError(f"{what}s={given!r}", expected="a number, a list of them, or a range")
    return [int(number) for number in numbers]


def part_of(call: Call, calls: Iterable[Call]) -> str | None:
    """Which attention of an encoder–decoder a call is; None in another model."""
    if not any(one.kind == "cross" for one in calls):
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
    known = {head for call in calls for head in call.heads}
    for head in heads or ():
        if head not in known:
            raise ArgumentError(f"head {head}", expected=_listed(sorted(known), "head"))
    order = list(PARTS)
    ordered = sorted(groups.items(), key=lambda one: order.index(one[0][0]) if one[0][0] else 0)
    found = []
    for (part, number, shape), group in ordered:
        own = [head for head in sorted({head for call in group for head in call.heads})
               if heads is None or head in heads]  # fmt: skip
        if own:
            heading = [PARTS[part]] if part else []
            heading += [f"pass {number}"] if passes else []
            if not heading and len(groups) > 1:
                heading = [f"{_tower(group)}: {shape[0]:,} queries, {shape[1]:,} keys"]
            found.append(Lines(group, _names(group), own, ", ".join(heading) or None, part))
    return found


def _tower(calls: list[Call]) -> str:
    """What the names of modules have in common, up to a point."""
    words = [call.name.split(".") for call in calls]
    same = []
    for column in zip(*words, strict=False):
        if len(set(column)) > 1 or column[0].isdecimal():
            break
        same.append(column[0])
    return ".".join(same) or calls[0].name


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
    own = [head for head in heads if head in call.heads]
    if not own:
        return [None] * len(heads)
    N, M = call.shape[1:]
    every = None if own == call.heads else own  # all at once cost less than each by itself

    def of(head: int | None) -> Tensor:
        if max(N, M) <= most:
            return call.weights(head)
        return call.heatmap(most, head=head, reduce=reduce)

    found = of(None) if every is None else torch.stack([of(head) for head in every])
    hidden = hidden_cells(call.causes, _sizes(N, M, most)).numpy()
    maps = {}
    for i, head in enumerate(own):
        table = hidden[call.heads.index(head) if len(hidden) > 1 else 0]
        maps[head] = np.ma.masked_array(found[i].float().cpu().numpy(), table)
    return [maps.get(head) for head in heads]


def _sizes(N: int, M: int, most: int) -> tuple[int, int]:
    """How many queries, and how many keys, a cell has."""
    return -(-N // most), -(-M // most)


def _pooled(N: int, M: int, most: int, reduce: str) -> list[str]:
    queries, keys = _sizes(N, M, most)
    if queries == keys == 1:
        return []
    word = "largest" if reduce == "max" else "mean"
    return [f"pooled: a cell is the {word} of {queries} × {keys} weights (queries × keys) of a map "
            f"of {N:,} × {M:,}"]  # fmt: skip


def _axes(group: Lines, most: int) -> tuple[list[str], list[str], tuple[str, str]]:
    """The labels of rows and columns, and what the two axes are called."""
    from heedful.pictures.names import names, places

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
    found = []
    for tokens, count, size in zip((call.query_tokens, call.key_tokens), (N, M),
                                   _sizes(N, M, most), strict=True):  # fmt: skip
        if size > 1:
            found.append(places(-(-count // size), size))
        elif tokens is not None:
            found.append(names(tokens))
        else:
            found.append(grid or places(count))
    return found[0], found[1], axes


def _borders(call: Call, most: int) -> tuple[list[int], list[int]]:
    """Before which rows and columns another text begins."""
    from heedful.pictures.names import borders

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
    look at each other and have no ids, in a model whose texts would have them or whose name says
    that it sees.
    """
    from heedful.pictures.names import patches

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
    """One head's scores before and after the mask, (N, M) each; −inf where it hides.

    Raises:
        ArgumentError: a map that is too large for a picture of each cell, or a call that hides no
            key from any query: before and after, all is the same.
    """
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
    from heedful.pictures import plots, style

    asked = _asked(calls, chosen)
    call = next((one for one in asked if one.kind == "causal"), asked[0])
    wanted = _numbers(chosen.heads, "head") or call.heads
    if wanted[0] not in call.heads:
        raise ArgumentError(f"head {wanted[0]}", expected=_listed(call.heads, "head"))
    scaled, masked = scores_of(call, wanted[0])
    queries, keys = (call.query_tokens, call.key_tokens)
    figure = plots.scores(
        scaled,
        masked,
        queries or [str(i) for i in range(call.shape[1])],
        key_tokens=keys or [str(i) for i in range(call.shape[2])],
        title=title or f"{_names([call])[0]}, head {wanted[0]}",
    )
    said = " · ".join([in_words([call]), *guesses([call])])
    figure.supxlabel(said, fontsize=8, color=style.QUIET, wrap=True)
    return figure
