"""The maps that a model of transformers returns, and the models that return something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Models whose `attentions` are not the weights that produce their output.
SCORES = {  # lists of scores before the softmax
    "squeezebert": ("attentions",),
    "prophetnet": ("cross_attentions", "encoder_attentions"),
}
MEAN = {"wavlm"}  # the mean over the heads, once per head
WITHOUT_SINK = {"granite_swa", "granitemoe_swa"}  # weights before the sink's share is removed
SAMPLED = [
    "d_fine",
    "deimv2",
    "pp_doclayout_v3",
    "pp_doclayout_v4",
    "rf_detr",
    "rt_detr",
    "rt_detr_v2",
]
OTHER = {  # lists of other tensors: group assignments, weights of a few sampled points
    "groupvit": ("vision_model_output.attentions",),
    "deformable_detr": ("cross_attentions", "encoder_attentions"),
    "grounding-dino": ("decoder_attentions.2", "encoder_attentions.3"),
    "mm-grounding-dino": ("decoder_attentions.2", "encoder_attentions.3"),
    **dict.fromkeys(SAMPLED, ("cross_attentions",)),
}
JOINED = {"t5gemma2": ("decoder_attentions", "cross_attentions")}  # both parts of a single call


class References(NamedTuple):
    """A list of maps (B, H, N, M) that the model returns, and its name in the output."""

    name: str
    maps: list[Tensor]


def maps_of(output: Any, path: str = "") -> Iterator[References]:
    """Yield every list of maps of an output and of its nested outputs."""
    items = output.items() if hasattr(output, "items") else []
    for key, value in items:
        if "attentions" in key and isinstance(value, tuple | list):
            yield from lists_of(f"{path}{key}", value)
        elif hasattr(value, "items"):
            yield from maps_of(value, f"{path}{key}.")


def lists_of(name: str, value: tuple | list) -> Iterator[References]:
    """Yield a list of maps, and the nested lists of models with several kinds of attention."""
    maps = [item for item in value if isinstance(item, Tensor)]
    if maps:
        yield References(name, maps)
    for number, inner in enumerate(value):
        if isinstance(inner, tuple | list):
            yield from lists_of(f"{name}.{number}", inner)


def usable(name: str, returned: list[References]) -> tuple[list[References], str]:
    """Return the maps that can be compared, and notes on converted or omitted maps."""
    notes = []
    if name in JOINED:
        pairs = zip(*(each.maps for each in returned if each.name in JOINED[name]), strict=True)
        joined = References("joined", [torch.cat(pair, dim=-1) for pair in pairs])
        returned = [joined, *(each for each in returned if each.name not in JOINED[name])]
        notes.append("self- and cross-attention are a single call")
    if name in SCORES:
        notes.append("some are scores")
        returned = [
            References(each.name, [map_.softmax(-1) for map_ in each.maps])
            if each.name in SCORES[name]
            else each
            for each in returned
        ]
    references: list[References] = []
    pointers: set[int] = set()  # some maps are in two lists
    omitted = 0
    for reference in returned:
        fresh = [map_ for map_ in reference.maps if map_.data_ptr() not in pointers]
        maps = [] if reference.name in OTHER.get(name, ()) else [m for m in fresh if is_map(m)]
        pointers.update(map_.data_ptr() for map_ in fresh)
        omitted += len(fresh) - len(maps)
        references += [References(reference.name, maps)] if maps else []
    if any(bool(map_.isnan().any()) for each in returned for map_ in each.maps):
        notes.append("it returns NaN")
    elif omitted:
        notes.append(f"{omitted} of its `attentions` are not weights of queries × keys")
    return references, "; ".join(notes)


def is_map(map_: Tensor) -> bool:
    """Return whether a tensor may be weights: not negative, with row sums of at most 1."""
    if map_.ndim < 3 or not map_.is_floating_point():
        return False
    return bool((map_ >= 0).all()) and bool((map_.sum(dim=-1) < 1.001).all())
