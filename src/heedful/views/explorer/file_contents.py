"""What every page as one file has, whatever its limit: texts, tokens, images, pictures and scores.

They are parts, each as `packed` writes it behind its length, all of them deflated together. What
several calls have in common, such as the tokens, is there once.
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
from heedful.recording.head_scores import Gathering
from heedful.recording.progress import Progress, Tell
from heedful.views.explorer.catalogue import Texts, named
from heedful.views.explorer.handlers import LONGEST, Answers, Where
from heedful.views.explorer.overview import SMALL, Pictured, scores_told
from heedful.views.explorer.stored_inputs import Inputs
from heedful.views.explorer.text import as_data, longest_in_file, picture_of, pictured
from heedful.views.explorer.wire import packed, unpacked

PICTURES = 0.25  # of the room, that the pictures of heads may take before they become smaller


class Head(NamedTuple):
    """A head of a call, by its place there, and how much of one kind it is, from 0 to 1."""

    where: Where
    place: int
    strength: float


class Parts:
    """Parts of a file, and numbers of those that are written once, however many need them."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._known: dict[bytes, int] = {}

    def add(self, name: str, head: dict[str, Any], /, **arrays: Tensor) -> None:
        """One more part."""
        self.parts.append(packed({"part": name, **head}, **arrays))

    def share(self, head: dict[str, Any], /, **arrays: Tensor) -> int:
        """The number of a part that may be there already."""
        digest = hashlib.blake2b(packed(head, **arrays)).digest()
        if digest not in self._known:
            self._known[digest] = len(self._known)
            self.add(f"shared {self._known[digest]}", head, **arrays)
        return self._known[digest]


class Contents:
    """Gathers what every page has, in one pass over the map of each head.

    Args:
        texts: what is shown.
        room: the bytes of the page, by which the sizes of images and pictures are chosen.
        bits: of the numbers of queries and keys.
        progress: is told of the share that is done, 0 to 1.
    """

    def __init__(self, texts: Texts, room: float, bits: int, progress: Tell) -> None:
        self.texts = texts
        self._calls = texts.calls()
        self._parts = Parts()
        self.heads: list[Head] = []
        self.inputs: dict[Where, Inputs] = {}
        self.wrong: dict[Where, str] = {}
        side, pixels = self._side(room), longest_in_file([of for _, of in self._calls], room / 4)
        weights = [call.shape[0] * call.shape[1] * call.shape[2] for _, call in self._calls]
        total, done = max(1, sum(weights)), 0
        for (where, call), size in zip(self._calls, weights, strict=True):

            def tell(share: float, done: int = done, size: int = size) -> None:
                progress((done + share * size) / total)

            try:
                about, arrays = self._measured(where, side, bits, tell)
            except HeedfulError as error:  # what was not recorded truthfully shows no number
                about, arrays = {"wrong": " ".join(str(error).split())}, {}
                self.wrong[where] = about["wrong"]
            self._parts.add(f"call {named(where)}", about | self._axes(call, pixels), **arrays)
            done += size

    def deflated(self, file: dict[str, Any]) -> bytes:
        """All parts, each behind its length, with what the page says of itself."""
        about, _ = unpacked(Answers(self.texts).about())
        deflate, pieces = zlib.compressobj(6), []
        for part in (*self._parts.parts, packed({"part": "about", **about, "file": file})):
            pieces.append(deflate.compress(struct.pack("<I", len(part)) + part))
        return b"".join(pieces) + deflate.flush()

    def _side(self, room: float) -> int:
        """Cells of a picture of a head, fewer where there are thousands of heads."""
        heads = sum(call.shape[0] for _, call in self._calls)
        sides = (SMALL, SMALL // 2, SMALL // 4)
        return next((side for side in sides if 2 * heads * side**2 <= PICTURES * room), sides[-1])

    def _measured(
        self, where: Where, side: int, bits: int, tell: Tell
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The kinds of a call's heads, their scores and pictures, and how weights are computed."""
        call, even = self.texts.scored(*where)
        gathering, pictures = Gathering(call, even), Pictured(call, side)
        gathering.take(range(call.shape[1]), pictures, Progress(tell))
        kinds, numbers = scores_told(call, gathering.found())
        small = _halved(pictures.result()).masked_fill(pictures.hidden(call), torch.nan)
        inputs = Inputs(named(where), self.texts.call(*where), bits)
        for place, kind in enumerate(kinds):
            strength = float(numbers[kind][place]) if kind in numbers else 0.0
            self.heads.append(Head(where, place, strength))
        self.inputs[where] = inputs
        return {"kinds": kinds, "inputs": inputs.about()}, {**numbers, "small": small}

    def _axes(self, call: Call, pixels: int) -> dict[str, Any]:
        """Where the tokens and the image of each axis are, if there are any."""
        return {
            "queries": self._tokens(call.query_tokens),
            "keys": self._tokens(call.key_tokens),
            "images": {axis: self._image(call, axis, pixels) for axis in pictured(call)},
        }

    def _tokens(self, names: list[str] | None) -> int | None:
        if names is None:
            return None
        cut = {i: len(name) for i, name in enumerate(names) if len(name) > LONGEST}
        return self._parts.share({"tokens": [name[:LONGEST] for name in names], "cut": cut})

    def _image(self, call: Call, axis: str, pixels: int) -> int | None:
        picture = picture_of(call, axis)
        if picture is None or not pixels:
            return None
        head, arrays = as_data(picture, pixels)
        return self._parts.share(head, **arrays)


def _halved(numbers: Tensor) -> Tensor:
    """In half precision, and never below what they were."""
    half = numbers.half()
    up = torch.from_numpy(np.nextafter(half.numpy(), np.float16("inf")))
    return torch.where(half.float() < numbers, up, half)
