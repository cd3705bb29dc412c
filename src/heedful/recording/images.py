"""The images of a recording: which token of a call is which patch.

A recording stores the images as given to the model, one for each sequence of the batch, and how the
model cuts them. Modules' names and matching lengths decide which axes of a call are patches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.recording.call import Call
from heedful.recording.checks import is_integer
from heedful.recording.image_patches import (
    Patches,
    Picture,
    inferred,
    numbered,
    places_of,
    windows_of,
)
from heedful.recording.pixels import LONGEST, Normalised, Pixels, limited, pixels_of, resized

REMEDY = "pass the grid: patches=(rows, columns), before=1 for a class token"


@dataclass
class Images:
    """The images of a recording, one for each sequence of the batch, and how they are cut.

    input_size: height and width of the model's input. check_file: raises if the file is damaged.
    """

    pixels: list[Tensor] = field(default_factory=list)
    patches: list[Patches] = field(default_factory=list)
    assumed: str = ""
    input_size: tuple[int, int] | None = None
    check_file: Callable[[], None] = lambda: None

    def picture(self, call: Call, axis: str, sequence: int, batch: int) -> Picture | None:
        """Return the picture of an axis of a call, "queries" or "keys", or None.

        `sequence` is its index among the `batch` sequences of the call.
        """
        if not self.pixels or batch % len(self.pixels):
            return None
        N, M = call.shape[1:]
        is_keys = axis == "keys"
        ids, length = (call.ids, M) if is_keys else (call.query_ids, N)
        if ids is not None or (call.ids is not None and not call.is_cross):
            return None  # the tokens are those of a text
        each = batch // len(self.pixels)
        pixels = self.pixels[sequence // each]
        for patches in self.patches:
            if not (patches.has(call.name) or (call.is_cross and is_keys and not patches.window)):
                continue
            rows, columns = patches.grid(pixels)
            if not rows * columns or each != windows_of(patches, rows, columns):
                continue  # a patch is larger than the image, or the number of windows differs
            places = places_of(patches, rows, columns, sequence % each)
            if len(places) == length:
                self.check_file()
                covered = pixels[: rows * patches.height, : columns * patches.width]
                assumed = self._guesses(patches, rows, columns)
                return Picture(covered, rows, columns, places, patches.before, assumed)
            if patches.has(call.name):
                return None  # the configuration of this part excludes images here
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
    inputs: Any, model_images: Images, calls_with: Callable[[Images], list[Call]],
    patches: tuple[int, int] | None = None, before: Any = None, processor: Any = None,
) -> Images:  # fmt: skip
    """Return images that fit at least one call; infer the patches if the model's do not fit.

    Args:
        inputs: a list of images, each in a form that `pixels_of` accepts.
        model_images: how the model cuts images, and the size of its input.
        calls_with: returns the calls of the first sequence, given some images.
        patches, before, processor: as in `Recording.set_images`, which lists the errors.
    """
    if not isinstance(inputs, list | tuple) or not inputs:
        raise ArgumentError(
            f"images of type {type(inputs).__name__}",
            expected="a list, with an image for each sequence of the batch",
            remedy="[image] for one",
        )
    calls = calls_with(Images())
    images = Images([], model_images.patches, "", model_images.input_size)
    for image in inputs:
        pixels, assumed = _model_input(image, processor, model_images.input_size)
        images.pixels.append(pixels)
        images.assumed = images.assumed or assumed
    if patches is not None:
        images.patches = [_from_argument(patches, before, calls, images.pixels[0])]
        images.pixels = [_divisible(pixels, *patches) for pixels in images.pixels]
    elif model_images.patches and before is not None:
        images.patches = [cut._replace(before=_names(before)) for cut in model_images.patches]
    elif not model_images.patches or not _fit(images, calls_with):
        images.patches = [_guessed(before, calls, images.pixels[0])]
        images.pixels = [_padded(pixels, images.patches[0]) for pixels in images.pixels]
    if not _fit(images, calls_with):
        raise _no_fit(images, calls)
    return images


def _fit(images: Images, calls_with: Callable[[Images], list[Call]]) -> bool:
    return any(call.key_picture or call.query_picture for call in calls_with(images))


def _no_fit(images: Images, calls: list[Call]) -> ArgumentError:
    """Return the error for images that fit no call, with the lengths of the calls."""
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


def _model_input(image: Any, processor: Any, size: tuple[int, int] | None) -> Pixels:
    """Return an image's pixels as the model's input; a tensor is assumed to be the input."""
    processor = getattr(processor, "image_processor", processor)
    if processor is not None and not isinstance(image, Tensor):
        from PIL import Image

        pil_image = Image.fromarray(pixels_of(image).data.numpy())
        image = processor(images=pil_image, return_tensors="pt")["pixel_values"][0]
    mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    normalised = None
    if getattr(processor, "do_normalize", False) and mean is not None and std is not None:
        normalised = Normalised(mean, std)
    pixels, assumed = pixels_of(image, normalised)
    if size and pixels.shape[:2] != size:
        h, w, (height, width) = *pixels.shape[:2], size
        assumed = f"{h} × {w} pixels, assumed to be resized to {height} × {width} without a crop"
        pixels = resized(pixels, height, width)
    return Pixels(limited(pixels, LONGEST), assumed)


def _guessed(before: Any, calls: list[Call], pixels: Tensor) -> Patches:
    """Return the grid that fits the first call by its size."""
    h, w = pixels.shape[:2]
    lengths = [call.shape[2] for call in calls if call.ids is None]
    extra = None if before is None else len(_names(before))
    for length in lengths:
        if guess := inferred(length, h, w, extra):
            return guess if before is None else guess._replace(before=_names(before))
    raise ArgumentError(
        f"an image of {h} × {w} pixels and {', '.join(map(str, dict.fromkeys(lengths)))} tokens",
        expected="as many tokens as square patches that cover it",
        remedy=REMEDY,
    )


def _from_argument(patches: Any, before: Any, calls: list[Call], pixels: Tensor) -> Patches:
    h, w = pixels.shape[:2]
    is_pair = (
        isinstance(patches, tuple | list) and len(patches) == 2 and all(map(is_integer, patches))
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
        extra = [length - rows * columns for length in lengths if length > rows * columns]
        names, assumed = numbered(min(extra, default=0)), "apart"
    h, w = _divisible(pixels, rows, columns).shape[:2]
    return Patches("", h // rows, w // columns, names, assumed=assumed)


def _padded(pixels: Tensor, patches: Patches) -> Tensor:
    """Pad an image with black at its right and bottom to a multiple of the patches' size."""
    h, w = pixels.shape[:2]
    return nn.functional.pad(pixels, (0, 0, 0, -w % patches.width, 0, -h % patches.height))


def _divisible(pixels: Tensor, rows: int, columns: int) -> Tensor:
    """Resize an image so that its sides are divisible by the numbers of rows and columns."""
    h, w = pixels.shape[:2]
    return resized(pixels, rows * max(1, round(h / rows)), columns * max(1, round(w / columns)))


def _names(before: Any) -> tuple[str, ...]:
    if is_integer(before) and before >= 0:
        return numbered(int(before))
    if isinstance(before, tuple | list) and all(isinstance(name, str) for name in before):
        return tuple(before)
    raise ArgumentError(
        f"before={before!r}", expected="the number of tokens before the patches, or their names"
    )
