"""The images that calls attend over: which token of an axis is which patch.

A recording keeps the images as the model saw them, one for each text of the batch, and how the
model cuts them; which axes have which follows from the modules' names and from lengths that fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.recording.call import Call
from heedful.recording.checks import is_whole
from heedful.recording.image_patches import (
    Patches,
    Picture,
    inferred,
    numbered,
    places_of,
    windows_of,
)
from heedful.recording.pixels import LONGEST, Normalised, Pixels, limited, pixels_of, resized

REMEDY = "tell the grid: patches=(rows, columns), before=1 for a class token"


@dataclass
class Images:
    """The images of a recording, one for each text of the batch, and how they are cut.

    seen: height and width that the model was given, where that is known.
    """

    pixels: list[Tensor] = field(default_factory=list)
    patches: list[Patches] = field(default_factory=list)
    assumed: str = ""
    seen: tuple[int, int] | None = None
    intact: Callable[[], None] = lambda: None

    def of(self, call: Call, axis: str, sequence: int, batch: int) -> Picture | None:
        """The picture under an axis of a call, "queries" or "keys"; None where there is none.

        `sequence` is its number among the `batch` sequences that the call had.
        """
        if not self.pixels or batch % len(self.pixels):
            return None
        N, M = call.shape[1:]
        is_keys = axis == "keys"
        ids, length = (call.ids, M) if is_keys else (call.query_ids, N)
        if ids is not None or (call.ids is not None and not call.crosses):
            return None  # tokens of a text
        each = batch // len(self.pixels)
        pixels = self.pixels[sequence // each]
        for patches in self.patches:
            if not (patches.has(call.name) or (call.crosses and is_keys and not patches.window)):
                continue
            rows, columns = patches.grid(pixels)
            if not rows * columns or each != windows_of(patches, rows, columns):
                continue  # a patch is larger than the image, or the windows are not of it
            places = places_of(patches, rows, columns, sequence % each)
            if len(places) == length:
                self.intact()
                covered = pixels[: rows * patches.height, : columns * patches.width]
                assumed = self._guesses(patches, rows, columns)
                return Picture(covered, rows, columns, places, patches.before, assumed)
            if patches.has(call.name):
                return None  # the model's own word for this part
        return None

    def _guesses(self, patches: Patches, rows: int, columns: int) -> str:
        count = len(patches.before)
        first = "first token" if count == 1 else f"first {count} tokens"
        of_patches = {
            "": "",
            "apart": f"{first} assumed apart",
            "assumed": f"patches assumed {rows} × {columns}{f', {first} apart' if count else ''}",
        }[patches.assumed]
        return "; ".join(filter(None, (of_patches, self.assumed)))


def with_images(
    given: Any, known: Images, calls_with: Callable[[Images], list[Call]],
    patches: tuple[int, int] | None = None, before: Any = None, processor: Any = None,
) -> Images:  # fmt: skip
    """Images under the calls that `calls_with` gives; where none of these fits them, as inferred.

    Args:
        given: a list of images, as `pixels_of` takes each.
        known: how the model cuts, and of which size it was given images.
        calls_with: gives the calls of the first sequence, with some images under them.
        patches, before, processor: as in `Recording.set_images`, which says what is raised.
    """
    if not isinstance(given, list | tuple) or not given:
        raise ArgumentError(
            f"images of type {type(given).__name__}",
            expected="a list, an image for each text of the batch",
            remedy="[image] for one",
        )
    calls = calls_with(Images())
    images = Images([], known.patches, "", known.seen)
    for image in given:
        pixels, assumed = _as_seen(image, processor, known.seen)
        images.pixels.append(pixels)
        images.assumed = images.assumed or assumed
    if patches is not None:
        images.patches = [_told(patches, before, calls, images.pixels[0])]
        images.pixels = [_divided(pixels, *patches) for pixels in images.pixels]
    elif known.patches and before is not None:
        images.patches = [cut._replace(before=_names(before)) for cut in known.patches]
    elif not known.patches or not _fit(images, calls_with):
        images.patches = [_guessed(before, calls, images.pixels[0])]
        images.pixels = [_whole(pixels, images.patches[0]) for pixels in images.pixels]
    if not _fit(images, calls_with):
        raise _misfit(images, calls)
    return images


def _fit(images: Images, calls_with: Callable[[Images], list[Call]]) -> bool:
    """Whether they lie under some call."""
    return any(call.key_picture or call.query_picture for call in calls_with(images))


def _misfit(images: Images, calls: list[Call]) -> ArgumentError:
    """What is wrong with images that lie under no call, with the lengths that there are."""
    lengths = sorted({length for call in calls for length in call.shape[1:]})
    grids = (cut.grid(images.pixels[0]) for cut in images.patches)
    cut = sorted({f"{rows} × {columns}" for rows, columns in grids})
    batch = max((call.batch for call in calls), default=0)
    return ArgumentError(
        f"{len(images.pixels)} image{'' if len(images.pixels) == 1 else 's'} "
        f"of {' or '.join(cut) or 'unknown'} patches",
        expected=f"one for each of the {batch} in the batch, with as many patches as some axis "
        f"has tokens: {', '.join(map(str, lengths))}",
        remedy=REMEDY,
    )


def _as_seen(image: Any, processor: Any, seen: tuple[int, int] | None) -> Pixels:
    """The pixels that the model saw of an image; a tensor is what it was given already."""
    of = getattr(processor, "image_processor", processor)
    if of is not None and not isinstance(image, Tensor):
        from PIL import Image

        whole = Image.fromarray(pixels_of(image).data.numpy())
        image = of(images=whole, return_tensors="pt")["pixel_values"][0]
    mean, std = getattr(of, "image_mean", None), getattr(of, "image_std", None)
    normalised = None
    if getattr(of, "do_normalize", False) and mean is not None and std is not None:
        normalised = Normalised(mean, std)
    pixels, assumed = pixels_of(image, normalised)
    if seen and pixels.shape[:2] != seen:
        h, w, (high, wide) = *pixels.shape[:2], seen
        assumed = f"{h} × {w} pixels, assumed to be made {high} × {wide} without a cut"
        pixels = resized(pixels, high, wide)
    return Pixels(limited(pixels, LONGEST), assumed)


def _guessed(before: Any, calls: list[Call], pixels: Tensor) -> Patches:
    """A grid that fits the first call by its size."""
    h, w = pixels.shape[:2]
    lengths = [call.shape[2] for call in calls if call.ids is None]
    apart = None if before is None else len(_names(before))
    for length in lengths:
        if guess := inferred(length, h, w, apart):
            return guess if before is None else guess._replace(before=_names(before))
    raise ArgumentError(
        f"an image of {h} × {w} pixels and {', '.join(map(str, dict.fromkeys(lengths)))} tokens",
        expected="as many tokens as square patches cover it",
        remedy=REMEDY,
    )


def _told(patches: Any, before: Any, calls: list[Call], pixels: Tensor) -> Patches:
    """The grid that the user tells."""
    h, w = pixels.shape[:2]
    is_pair = (
        isinstance(patches, tuple | list) and len(patches) == 2 and all(map(is_whole, patches))
    )
    if not is_pair or not (0 < patches[0] <= h and 0 < patches[1] <= w):
        raise ArgumentError(
            f"patches={patches!r}",
            expected=f"rows and columns, at most {h} and {w}, such as (14, 14)",
        )
    rows, columns = map(int, patches)
    lengths = [call.shape[2] for call in calls if call.ids is None]
    names, assumed = () if before is None else _names(before), ""
    if before is None and rows * columns not in lengths:
        left = [length - rows * columns for length in lengths if length > rows * columns]
        names, assumed = numbered(min(left, default=0)), "apart"
    h, w = _divided(pixels, rows, columns).shape[:2]
    return Patches("", h // rows, w // columns, names, assumed=assumed)


def _whole(pixels: Tensor, patches: Patches) -> Tensor:
    """The same image with black beside it, so that its last patches are whole."""
    h, w = pixels.shape[:2]
    return nn.functional.pad(pixels, (0, 0, 0, -w % patches.width, 0, -h % patches.height))


def _divided(pixels: Tensor, rows: int, columns: int) -> Tensor:
    """The same image of a size that whole patches cover."""
    h, w = pixels.shape[:2]
    return resized(pixels, rows * max(1, round(h / rows)), columns * max(1, round(w / columns)))


def _names(before: Any) -> tuple[str, ...]:
    if is_whole(before) and before >= 0:
        return numbered(int(before))
    if isinstance(before, tuple | list) and all(isinstance(name, str) for name in before):
        return tuple(before)
    raise ArgumentError(
        f"before={before!r}", expected="how many tokens stand before the patches, or their names"
    )
