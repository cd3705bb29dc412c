"""The images of a recording, and the patch that belongs to each token of a call.

A recording stores an image for each sequence of the batch, as the model read it, and how the model
cuts it into patches. The queries or keys of a call are patches if their number fits, and the module
is in a part of the model that cuts images; for the keys of cross-attention, the number suffices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.recording import image_patches
from heedful.recording.call import Call
from heedful.recording.checks import is_integer
from heedful.recording.image_patches import Patches, Picture, infer_patches, numbered_names
from heedful.recording.pixels import MAX_SIDE, Normalised, Pixels, pixels_of, resize, shrink

REMEDY = "pass the grid: patches=(rows, columns), before=1 for a class token"


@dataclass
class Images:
    """The images of a recording, one for each sequence of the batch, and how the model cuts them.

    assumed: a note on guesses about the pixels; else empty. input_size: height and width of the
    model's input. check_file: raises a RunError if the file that stores the images is damaged.
    """

    pixels: list[Tensor] = field(default_factory=list)
    patches: list[Patches] = field(default_factory=list)
    assumed: str = ""
    input_size: tuple[int, int] | None = None
    check_file: Callable[[], None] = lambda: None

    def picture(self, call: Call, axis: str, sequence: int, batch: int) -> Picture | None:
        """Return the picture of a call's "queries" or "keys"; None if these are not patches.

        `sequence` is the index of the call's part of a text among the `batch` parts of all texts.
        """
        if not self.pixels or batch % len(self.pixels):
            return None
        N, M = call.shape[1:]
        is_keys = axis == "keys"
        ids, length = (call.ids, M) if is_keys else (call.query_ids, N)
        if ids is not None or (call.ids is not None and not call.is_cross):
            return None  # the tokens are those of a text
        windows = batch // len(self.pixels)
        pixels = self.pixels[sequence // windows]
        for patches in self.patches:
            is_source = call.is_cross and is_keys and not patches.window
            if not (patches.contains(call.name) or is_source):
                continue
            rows, columns = patches.grid(pixels)
            if not rows * columns or windows != image_patches.windows_of(patches, rows, columns):
                continue  # a patch is larger than the image, or the number of windows differs
            window = sequence % windows
            indices = image_patches.patch_indices_of(patches, rows, columns, window)
            if len(indices) == length:
                self.check_file()
                covered = pixels[: rows * patches.height, : columns * patches.width]
                note = self._guess_note(patches, rows, columns)
                return Picture(covered, rows, columns, indices, patches.before, note)
            if patches.contains(call.name):
                return None  # the configuration of this part implies another number of tokens
        return None

    def _guess_note(self, patches: Patches, rows: int, columns: int) -> str:
        count = len(patches.before)
        after = "after the first token" if count == 1 else f"after the first {count} tokens"
        patches_note = {
            "": "",
            "apart": f"assumed to begin {after}",
            "assumed": f"patches assumed {rows} × {columns}{f', {after}' if count else ''}",
        }[patches.assumed]
        return "; ".join(filter(None, (patches_note, self.assumed)))


def with_images(
    inputs: Any, model_images: Images, calls_with: Callable[[Images], list[Call]],
    patches: tuple[int, int] | None = None, before: Any = None, processor: Any = None,
) -> Images:  # fmt: skip
    """Convert images to the model's input, and determine patches that fit at least one call.

    Args:
        inputs: a list of images, each in a form that `pixels_of` accepts.
        model_images: the patches and the input size of the model; without pixels.
        calls_with: a function from `Images` to the calls on the first text, with these images.
        patches, before, processor: as in `Recording.set_images`, which lists the errors.
    """
    if not isinstance(inputs, list | tuple) or not inputs:
        raise ArgumentError(
            f"images of type {type(inputs).__name__}",
            expected="a list, with an image for each sequence of the batch",
            remedy="pass [image] for one image",
        )
    calls = calls_with(Images())
    images = Images([], model_images.patches, "", model_images.input_size)
    for image in inputs:
        pixels, assumed = _model_input(image, processor, model_images.input_size)
        images.pixels.append(pixels)
        images.assumed = images.assumed or assumed
    if patches is not None:
        images.patches = [_patches_of_grid(patches, before, calls, images.pixels[0])]
        images.pixels = [_resize_to_grid(pixels, *patches) for pixels in images.pixels]
    elif model_images.patches and before is not None:
        images.patches = [cut._replace(before=_names(before)) for cut in model_images.patches]
    elif not model_images.patches or not _fit_some_call(images, calls_with):
        images.patches = [_infer(before, calls, images.pixels[0])]
        images.pixels = [_pad(pixels, images.patches[0]) for pixels in images.pixels]
    if not _fit_some_call(images, calls_with):
        raise _fit_error(images, calls)
    return images


def _fit_some_call(images: Images, calls_with: Callable[[Images], list[Call]]) -> bool:
    return any(call.key_picture or call.query_picture for call in calls_with(images))


def _fit_error(images: Images, calls: list[Call]) -> ArgumentError:
    """Return the error for images that fit no call; it lists the calls' numbers of tokens."""
    lengths = sorted({length for call in calls for length in call.shape[1:]})
    grids = (cut.grid(images.pixels[0]) for cut in images.patches)
    cut = sorted({f"{rows} × {columns}" for rows, columns in grids})
    batch = max((call.batch for call in calls), default=0)
    return ArgumentError(
        f"{len(images.pixels)} image{'' if len(images.pixels) == 1 else 's'} "
        f"of {' or '.join(cut) or 'unknown'} patches",
        expected=f"an image for each of the {batch} sequences in the batch, with as many patches "
        f"as some call has queries or keys: {', '.join(map(str, lengths))}",
        remedy=REMEDY,
    )


def _model_input(image: Any, processor: Any, size: tuple[int, int] | None) -> Pixels:
    """Return the pixels of the model's input; a tensor is assumed to be the input itself."""
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
        pixels = resize(pixels, height, width)
    return Pixels(shrink(pixels, MAX_SIDE), assumed)


def _infer(before: Any, calls: list[Call], pixels: Tensor) -> Patches:
    """Infer the patches from the number of keys of the first call that some patches fit."""
    h, w = pixels.shape[:2]
    lengths = [call.shape[2] for call in calls if call.ids is None]
    extra = None if before is None else len(_names(before))
    for length in lengths:
        if guess := infer_patches(length, h, w, extra):
            return guess if before is None else guess._replace(before=_names(before))
    raise ArgumentError(
        f"an image of {h} × {w} pixels and {', '.join(map(str, dict.fromkeys(lengths)))} tokens",
        expected="as many tokens as square patches that cover the image",
        remedy=REMEDY,
    )


def _patches_of_grid(patches: Any, before: Any, calls: list[Call], pixels: Tensor) -> Patches:
    """Return the patches of a grid (rows, columns), after checking it."""
    h, w = pixels.shape[:2]
    is_pair = isinstance(patches, tuple | list) and len(patches) == 2
    are_integers = is_pair and all(map(is_integer, patches))
    if not are_integers or not (0 < patches[0] <= h and 0 < patches[1] <= w):
        raise ArgumentError(
            f"patches={patches!r}",
            expected=f"rows and columns, at most {h} and {w}, such as (14, 14)",
        )
    rows, columns = map(int, patches)
    lengths = [call.shape[2] for call in calls if call.ids is None]
    names, assumed = () if before is None else _names(before), ""
    if before is None and rows * columns not in lengths:
        extra = [length - rows * columns for length in lengths if length > rows * columns]
        names, assumed = numbered_names(min(extra, default=0)), "apart"
    h, w = _resize_to_grid(pixels, rows, columns).shape[:2]
    return Patches("", h // rows, w // columns, names, assumed=assumed)


def _pad(pixels: Tensor, patches: Patches) -> Tensor:
    """Pad an image with black, right and below, to a multiple of the patches' size."""
    h, w = pixels.shape[:2]
    return nn.functional.pad(pixels, (0, 0, 0, -w % patches.width, 0, -h % patches.height))


def _resize_to_grid(pixels: Tensor, rows: int, columns: int) -> Tensor:
    """Resize an image so that its sides are divisible by the numbers of rows and columns."""
    h, w = pixels.shape[:2]
    return resize(pixels, rows * max(1, round(h / rows)), columns * max(1, round(w / columns)))


def _names(before: Any) -> tuple[str, ...]:
    if is_integer(before) and before >= 0:
        return numbered_names(int(before))
    if isinstance(before, tuple | list) and all(isinstance(name, str) for name in before):
        return tuple(before)
    raise ArgumentError(
        f"before={before!r}", expected="the number of tokens before the patches, or their names"
    )
