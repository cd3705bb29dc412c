"""The picture under an axis of a call, on its way to a page."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from heedful.recording import Call
from heedful.recording.patches import Picture
from heedful.recording.pixels import limited

AXES = ("queries", "keys")
LONGEST = 1024  # pixels of a side that are sent; a page has room for no more
IN_FILE = (512, 256, 128, 64)  # of an image in the one file: the largest that there is room for


def picture_of(call: Call, axis: str) -> Picture | None:
    """What lies under an axis, where it has patches and no words."""
    return call.query_picture if axis == "queries" else call.key_picture


def pictured(call: Call) -> list[str]:
    """The axes that have a picture."""
    return [axis for axis in AXES if picture_of(call, axis) is not None]


def as_data(picture: Picture, longest: int = LONGEST) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A picture as a head and arrays: its pixels, and for each token the number of its patch.

    Args:
        picture: what is sent.
        longest: pixels of a side; a larger image is made smaller, and its own size is told.
    """
    h, w = picture.pixels.shape[:2]
    head = {"rows": picture.rows, "columns": picture.columns, "assumed": picture.assumed,
            "size": [h, w], "before": list(picture.before)}  # fmt: skip
    arrays = {"pixels": limited(picture.pixels, longest), "places": picture.places.int()}
    return head, arrays


def longest_in_file(calls: list[Call], room: float) -> int:
    """How many pixels a side of each image may have, so that all fit into so many bytes, or 0."""
    found = [picture_of(call, axis) for call in calls for axis in AXES]
    images = {one.pixels.data_ptr(): one.pixels for one in found if one is not None}
    for longest in IN_FILE:
        if sum(limited(one, longest).nbytes for one in images.values()) <= room:
            return longest
    return 0
