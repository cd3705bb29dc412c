"""The maps that a model of transformers returns, and what they are where they are no weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

# What some return as `attentions` is not the weights that their output is made with
SCORES = {  # lists of scores, before the softmax
    "squeezebert": ("attentions",),
    "prophetnet": ("cross_attentions", "encoder_attentions"),
}
MEAN = {"wavlm"}  # the mean over the heads, for each of them
WITHOUT_SINK = {"granite_swa", "granitemoe_swa"}  # the sink takes its share afterwards
SAMPLED = [
    "d_fine",
    "deimv2",
    "pp_doclayout_v3",
    "pp_doclayout_v4",
    "rf_detr",
    "rt_detr",
    "rt_detr_v2",
]
OTHER = {  # lists of something else: groups, as pictures; weights of a few sampled points
    "groupvit": ("vision_model_output.attentions",),
    "deformable_detr": ("cross_attentions", "encoder_attentions"),
    "grounding-dino": ("decoder_attentions.2", "encoder_attentions.3"),
    "mm-grounding-dino": ("decoder_attentions.2", "encoder_attentions.3"),
    **dict.fromkeys(SAMPLED, ("cross_attentions",)),
}
JOINED = {"t5gemma2": ("decoder_attentions", "cross_attentions")}  # the parts of one call


class References(NamedTuple):
    """A list of maps (B, H, N, M) as the model returns it, and its name."""

    name: str
    maps: list[Tensor]


def maps_of(output: Any, path: str = "") -> Iterator[References]:
    """Every list of maps of an output, with those of the outputs inside it."""
    items = output.items() if hasattr(output, "items") else []
    for key, value in items:
        if "attentions" in key and isinstance(value, tuple | list):
            yield from lists_of(f"{path}{key}", value)
        elif hasattr(value, "items"):
            yield from maps_of(value, f"{path}{key}.")


def lists_of(name: str, value: tuple | list) -> Iterator[References]:
    """One list of maps, or of lists, where the model keeps kinds of attention apart."""
    maps = [one for one in value if isinstance(one, Tensor)]
    if maps:
        yield References(name, maps)
    for number, inner in enumerate(value):
        if isinstance(inner, tuple | list):
            yield from lists_of(f"{name}.{number}", inner)


def usable(name: str, found: list[References]) -> tuple[list[References], str]:
    """The maps as they can be compared, and what was done to them or left out."""
    notes = []
    if name in JOINED:
        pairs = zip(*(one.maps for one in found if one.name in JOINED[name]), strict=True)
        joined = References("joined", [torch.cat(pair, dim=-1) for pair in pairs])
        found = [joined, *(one for one in found if one.name not in JOINED[name])]
        notes.append("self and cross are one call")
    if name in SCORES:
        notes.append("some are scores")
        found = [
            References(one.name, [map_.softmax(-1) for map_ in one.maps])
            if one.name in SCORES[name]
            else one
            for one in found
        ]
    kept: list[References] = []
    seen: set[int] = set()  # some maps are in two lists
    left = 0
    for one in found:
        fresh = [map_ for map_ in one.maps if map_.data_ptr() not in seen]
        maps = [] if one.name in OTHER.get(name, ()) else [m for m in fresh if is_map(m)]
        seen.update(map_.data_ptr() for map_ in fresh)
        left += len(fresh) - len(maps)
        kept += [References(one.name, maps)] if maps else []
    if any(bool(map_.isnan().any()) for one in found for map_ in one.maps):
        notes.append("it gives NaN")
    elif left:
        notes.append(f"{left} of its `attentions` are no weights of queries × keys")
    return kept, "; ".join(notes)


def is_map(map_: Tensor) -> bool:
    """Whether it can be weights at all: none below zero, and no row of more than one."""
    if map_.ndim < 3 or not map_.is_floating_point():
        return False
    return bool((map_ >= 0).all()) and bool((map_.sum(dim=-1) < 1.001).all())
