"""The data that every standalone page has: texts, tokens, images, thumbnails and scores.

The data consists of parts in the format of `wire.packed`; before each part stands its length. All
parts are deflated together. Data that several calls share, such as tokens, is stored once.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.recording import Call
from heedful.recording.head_scores import ScoreGatherer
from heedful.recording.progress import OnProgress, Progress
from heedful.views.explorer.catalogue import Catalogue, call_id
from heedful.views.explorer.handlers import LONGEST, Handlers, Indices
from heedful.views.explorer.overview import SMALL, Thumbnails, head_data
from heedful.views.explorer.stored_inputs import StoredInputs
from heedful.views.explorer.text import image_axes, image_data, image_of, image_size
from heedful.views.explorer.wire import packed, unpacked

THUMBNAILS = 0.25  # share of the file's limit; thumbnails that need more become smaller


class Head(NamedTuple):
    """A head: the indices of its call, its index in the call, and the score of its kind, 0 to 1."""

    indices: Indices
    head_index: int
    strength: float


class FileContents:
    """Collects the data in one pass over the map of each head.

    Args:
        catalogue: the recordings to show.
        room: the limit of the file in bytes, which sets the size of images and thumbnails.
        bits: how many bits each number of a query or key takes.
        progress: called with the completed share, 0 to 1.
    """

    def __init__(self, catalogue: Catalogue, room: float, bits: int, progress: OnProgress) -> None:
        self.catalogue = catalogue
        self._calls = catalogue.calls()
        self._parts: list[bytes] = []
        self._shared: dict[bytes, int] = {}  # by digest, the numbers of shared parts
        self.heads: list[Head] = []
        self.inputs: dict[Indices, StoredInputs] = {}
        self.errors: dict[Indices, str] = {}
        count = sum(call.shape[0] for _, call in self._calls)  # the more heads, the smaller
        sides = (SMALL, SMALL // 2, SMALL // 4)
        fitting = (side for side in sides if 2 * count * side**2 <= THUMBNAILS * room)
        side = next(fitting, sides[-1])  # the maximum side of a thumbnail in pixels
        pixels = image_size([call for _, call in self._calls], room / 4)
        weights = [call.shape[0] * call.shape[1] * call.shape[2] for _, call in self._calls]
        total, completed = max(1, sum(weights)), 0
        for (indices, call), size in zip(self._calls, weights, strict=True):

            def report(share: float, start: int = completed, size: int = size) -> None:
                progress((start + share * size) / total)

            try:
                about, arrays = self._read(indices, side, bits, report)
            except HeedfulError as error:  # a refuted call: the page shows the error instead
                about, arrays = {"wrong": " ".join(str(error).split())}, {}
                self.errors[indices] = about["wrong"]
            self._add(f"call {call_id(indices)}", about | self._axes(call, pixels), **arrays)
            completed += size

    def deflated(self, file: dict[str, Any]) -> bytes:
        """Return all parts, deflated; the last part describes the page and has the field `file`."""
        about, _ = unpacked(Handlers(self.catalogue).about())
        deflate, pieces = zlib.compressobj(6), []
        for part in (*self._parts, packed({"part": "about", **about, "file": file})):
            pieces.append(deflate.compress(struct.pack("<I", len(part)) + part))
        return b"".join(pieces) + deflate.flush()

    def _read(
        self, indices: Indices, side: int, bits: int, report: OnProgress
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Collect the heads of a call: kinds, scores, thumbnails and attention inputs."""
        call, chance_scores = self.catalogue.scored(*indices)
        gathering, thumbnails = ScoreGatherer(call, chance_scores), Thumbnails(call, side)
        gathering.add_rows(range(call.shape[1]), thumbnails, Progress(report))
        kinds, numbers = head_data(call, gathering.evidence())
        small = _half_up(thumbnails.result()).nan_to_num(nan=torch.inf)
        small = small.masked_fill(thumbnails.fully_masked(call), torch.nan)
        inputs = StoredInputs(call_id(indices), self.catalogue.call(*indices), bits)
        for head_index, kind in enumerate(kinds):
            strength = float(numbers[kind][head_index]) if kind in numbers else 0.0
            self.heads.append(Head(indices, head_index, strength))
        self.inputs[indices] = inputs
        return {"kinds": kinds, "inputs": inputs.about()}, {**numbers, "small": small}

    def _axes(self, call: Call, pixels: int) -> dict[str, Any]:
        """Store the tokens and images of both axes, and return the numbers of their parts."""
        return {
            "queries": self._tokens(call.query_tokens),
            "keys": self._tokens(call.key_tokens),
            "images": {axis: self._image(call, axis, pixels) for axis in image_axes(call)},
        }

    def _tokens(self, names: list[str] | None) -> int | None:
        if names is None:
            return None
        cut = {i: len(name) for i, name in enumerate(names) if len(name) > LONGEST}
        return self._share({"tokens": [name[:LONGEST] for name in names], "cut": cut})

    def _image(self, call: Call, axis: str, pixels: int) -> int | None:
        picture = image_of(call, axis)
        if picture is None or not pixels:
            return None
        head, arrays = image_data(picture, pixels)
        return self._share(head, **arrays)

    def _add(self, name: str, head: dict[str, Any], /, **arrays: Tensor) -> None:
        """Append a part."""
        self._parts.append(packed({"part": name, **head}, **arrays))

    def _share(self, head: dict[str, Any], /, **arrays: Tensor) -> int:
        """Append a shared part unless it exists; return its number."""
        digest = hashlib.blake2b(packed(head, **arrays)).digest()
        if digest not in self._shared:
            self._shared[digest] = len(self._shared)
            self._add(f"shared {self._shared[digest]}", head, **arrays)
        return self._shared[digest]


def _half_up(numbers: Tensor) -> Tensor:
    """Convert numbers to half precision, rounded up."""
    half = numbers.half()
    up = torch.from_numpy(np.nextafter(half.numpy(), np.float16("inf")))
    return torch.where(half.float() < numbers, up, half)
