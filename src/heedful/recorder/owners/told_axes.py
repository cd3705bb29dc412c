"""Reads what a user tells of the axes of a module's queries, in the notation of einops.

`record(model, axes={"encoder.*.attn": "(h b) n d"})`: b texts, h heads, g groups of heads that
share a key, n queries, d the width (in the scores: the keys); any other letter is a part of a text,
such as a window.
Source: Rogozhnikov 2022, *Einops* (ICLR).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from heedful.configuration import nearest
from heedful.errors import ArgumentError
from heedful.recorder.following.alignment import Atom, Order
from heedful.recorder.following.strides import Parts, length
from heedful.recording.module_names import plain_name
from heedful.recorder.owners.axis_owners import Groups, Sides


class TokenAxes(NamedTuple):
    """What is told of the axes of one module's queries.

    pattern: the notation as it was given, "(b h) n d".
    axes: the letters of each axis, outer ones first.
    texts: how many texts the pass has.
    sizes: the size of each letter, once a call has shown it.
    """

    pattern: str
    axes: list[list[str]]
    texts: int | None
    sizes: dict[str, int]


def parsed(axes: Any) -> dict[str, TokenAxes]:
    """What is told, by the pattern of the modules' names.

    Raises:
        ArgumentError: anything but such a mapping, or a notation without n and d.

    >>> parsed({"blocks.*": "(b h) n d"})["blocks.*"].axes
    [['b', 'h'], ['n'], ['d']]
    """
    if axes is None:
        return {}
    if not isinstance(axes, Mapping):
        raise ArgumentError(
            f"axes of type {type(axes).__name__}",
            expected='names of modules and the axes of their queries, {"*.attn": "b h n d"}',
        )
    return {str(name): _parsed(str(pattern)) for name, pattern in axes.items()}


def check_names(axes: Mapping[str, TokenAxes], model: nn.Module) -> None:
    """Refuse a pattern that fits no module's name.

    Raises:
        ArgumentError: with the names that are nearest to it.
    """
    if not axes:  # to list the modules of a large model takes a while
        return
    plain = [plain_name(name) for name, _ in model.named_modules(remove_duplicate=False)]
    names = [*filter(None, plain), type(getattr(model, "_orig_mod", model)).__name__]
    for pattern in axes:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ArgumentError(
                f"axes for {pattern!r}, which no module is called",
                expected=f"a name such as {nearest(pattern, names[:40])}, with * for any part",
            )


def _parsed(pattern: str) -> TokenAxes:
    found = re.findall(r"\(([a-z ]+)\)|([a-z])", pattern)
    letters = [joined.split() if joined else [single] for joined, single in found]
    flat = [letter for axis in letters for letter in axis]
    rest = re.sub(r"\([a-z ]+\)|[a-z]|\s", "", pattern)
    is_split = all(len(letter) == 1 for letter in flat)
    once = len(set(flat)) == len(flat)
    is_spaced = re.fullmatch(r"(\([a-z ]+\)|[a-z])( (\([a-z ]+\)|[a-z]))*", pattern.strip())
    if (
        rest
        or not is_spaced
        or not is_split
        or not once
        or not {"n", "d"} <= set(flat)
        or ["d"] not in letters
    ):
        raise ArgumentError(
            f"axes {pattern!r}",
            expected="each axis of the queries by its letter, each letter once, with n and d, "
            "such as 'b h n d' or '(h b) n d'",
        )
    return TokenAxes(pattern, letters, None, {})


def axes_told_for(axes: Mapping[str, TokenAxes], name: str, texts: int | None) -> TokenAxes | None:
    """What is told of a module of this name, by the first pattern that fits it."""
    for pattern, told in axes.items():
        if fnmatchcase(name, pattern):
            return told._replace(texts=texts, sizes={})
    return None


def contradicted(axes: Mapping[str, TokenAxes], name: str) -> dict[str, str]:
    """The doubt about a module that tells its axes itself, where the user told others; else none.

    >>> contradicted(parsed({"*.attend": "(h b) n d"}), "blocks.0.attend")
    {'axes': "axes told as '(h b) n d', where the layer itself has 'b h n d', which counts"}
    """
    told = axes_told_for(axes, name, None)
    if told is None or told.pattern.split() in _own_orders():
        return {}
    own = "where the layer itself has 'b h n d', which counts"
    return {"axes": f"axes told as {told.pattern!r}, {own}"}


def _own_orders() -> list[list[str]]:
    """The axes of queries as layers have them that tell their own: texts and heads before."""
    return [[*before, "n", "d"] for before in ([], ["b"], ["h"], ["b", "h"])]


def grouped(told: TokenAxes, sides: Sides, order: Order, axes: list[Parts]) -> Groups:
    """The atoms of a call by the owners that were told.

    Args:
        told: what is told of the queries; the scores have the keys where these have the width.
        sides: the atoms.
        order: of the call; axes that were told to be several are split in it.
        axes: the axes of the scores, as their softmax had them.

    Raises:
        ArgumentError: the scores have another number of axes, or sizes that do not fit.
    """
    if len(told.axes) != len(axes):
        raise ArgumentError(
            f"axes {told.pattern!r} for scores of {len(axes)} axes",
            expected=f"{len(axes)} axes, those of the scores, with d for the keys",
        )
    for letters, parts in zip(told.axes, axes, strict=True):
        for inner in _borders(told, letters, length(parts)):
            _split(told, order, parts, inner)
    owners: dict[str, list[Atom]] = {}
    told.sizes.clear()
    for letters, parts in zip(told.axes, axes, strict=True):
        sizes = _sizes(told, letters, length(parts))
        told.sizes.update(sizes)
        atoms = list(order.atoms(parts))
        for letter in letters:
            mine = owners.setdefault(letter, [])
            done = 1
            while atoms and done < sizes[letter]:
                atom = atoms.pop(0)
                mine.append(atom)
                done *= atom.size
    keys = owners.pop("d")
    parts_of_texts = [atom for letter in owners if letter not in "bghn" for atom in owners[letter]]
    return Groups(
        [*owners.get("b", []), *parts_of_texts],
        [*owners.get("g", []), *owners.get("h", [])],
        owners["n"],
        keys,
    )


def _sizes(told: TokenAxes, letters: list[str], size: int) -> dict[str, int]:
    """The size of each letter of an axis; one that is not known follows from the others."""
    if len(letters) == 1:
        return {letters[0]: size}
    known = {"b": told.texts} if "b" in letters and told.texts else {}
    open_ = [letter for letter in letters if letter not in known]
    done = known.get("b") or 1
    if len(open_) != 1 or size % done:
        raise ArgumentError(
            f"axes {told.pattern!r} for an axis of {size}, of {told.texts or 'unknown'} texts",
            expected="sizes of all letters but one that are known",
            remedy="split the axis in the model, or record one text at a time",
        )
    return {**known, open_[0]: size // done}


def _borders(told: TokenAxes, letters: list[str], size: int) -> list[int]:
    """The steps at which an axis of several letters is split: 4 for (b h) of 3 × 4."""
    sizes = _sizes(told, letters, size)
    borders, inner = [], 1
    for letter in reversed(letters[1:]):
        inner *= sizes[letter]
        borders.append(inner)
    return borders


def _split(told: TokenAxes, order: Order, parts: Parts, inner: int) -> None:
    """Split the part of an axis in which the step `inner` lies.

    Raises:
        ArgumentError: the axis was made of parts that end elsewhere.
    """
    done = 1
    for part in reversed(parts):
        end = done * part.size
        if done < inner < end:
            if inner % done or end % inner:
                sizes = " × ".join(str(one.size) for one in parts)
                raise ArgumentError(
                    f"axes {told.pattern!r} for an axis of {length(parts)}, with steps of {inner}",
                    expected=f"what was followed: it was put together of {sizes}",
                    cause="letters of an axis told in another order than the model has them",
                )
            order.split(part.axis, part.step * (inner // done))
        done = end
