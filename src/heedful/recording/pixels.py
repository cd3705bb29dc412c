"""Conversion of a path, a PIL image, an array or a tensor to pixels, uint8 (h, w, 3)."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError

MAX_SIDE = 4096  # pixels; an image with a longer side is shrunk, or above 4 × MAX_SIDE refused
FORMS = "a path, a PIL image, an array (h, w, 3), or a tensor (3, h, w)"
STRETCHED = "colours stretched from the smallest value to the largest"


class Pixels(NamedTuple):
    """An image, uint8 (h, w, 3); `assumed` is a note on a guess about its colours, or empty."""

    data: Tensor
    assumed: str = ""


class Normalised(NamedTuple):
    """An image processor's normalisation of values 0 to 1, (value − mean) / std, per channel."""

    mean: Sequence[float]
    std: Sequence[float]


def pixels_of(image: Any, normalised: Normalised | None = None) -> Pixels:
    """Return the pixels of an image.

    Args:
        image: a path, a PIL image, an array of shape (h, w, 3) or (h, w), or a tensor of shape
            (3, h, w) or (1, h, w). Its numbers are integers from 0 to 255, or floats from 0 to 1.
        normalised: the normalisation that a tensor went through, which is undone. Without it,
            floats beyond 0 to 1 are stretched to 0 to 1, as `assumed` reports.

    Raises:
        ArgumentError: another type, shape or range of values, a file that is missing, unreadable or
            not an image, no pixels, too many pixels, or numbers that are not finite.

    >>> pixels_of(torch.ones(3, 2, 5)).data.shape
    torch.Size([2, 5, 3])
    """
    if isinstance(image, str | PathLike):
        image = _read(image)
    if hasattr(image, "convert") and hasattr(image, "getbands"):  # a PIL image
        image = np.asarray(_eight_bits(image))
    if isinstance(image, Tensor):
        table = image.detach().cpu()
        channels = table.movedim(0, -1) if table.ndim == 3 else table
    elif isinstance(image, np.ndarray):
        try:
            channels = torch.from_numpy(np.array(image))  # a copy: the array may be read-only
        except TypeError as error:
            raise ArgumentError(f"an image of {image.dtype}", expected="numbers") from error
        channels = channels[..., None] if channels.ndim == 2 else channels
    else:
        raise ArgumentError(f"an image of type {type(image).__name__}", expected=FORMS)
    return _to_uint8(_three_channels(channels, image), normalised)


def _read(path: str | PathLike[str]) -> Any:
    """Read an image file, and rotate the image by its EXIF orientation."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if max(image.size) > 4 * MAX_SIDE:
                raise ArgumentError(
                    f"{path} of {image.width:,} × {image.height:,} pixels",
                    expected=f"at most {4 * MAX_SIDE:,} to a side",
                )
            image.load()
            return _eight_bits(ImageOps.exif_transpose(image))
    except FileNotFoundError as error:
        raise ArgumentError(f"no image {path}", remedy="check the path") from error
    except UnidentifiedImageError as error:
        raise ArgumentError(
            f"{path} is not an image", expected="a PNG, a JPEG or another that Pillow reads"
        ) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        why = " ".join(str(error).split())
        raise ArgumentError(f"the image {path} cannot be read", cause=why) from error


def _eight_bits(image: Any) -> Any:
    """Convert a PIL image to RGB. Scale 16-bit greys first, which Pillow's conversion clips."""
    if image.mode.startswith("I;16"):
        from PIL import Image

        image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    return image.convert("RGB")


def _three_channels(channels: Tensor, image: Any) -> Tensor:
    """Check an image's shape and numbers; return it as (h, w, 3)."""
    shape = reprlib.repr(tuple(image.shape))
    if channels.ndim != 3 or channels.shape[-1] not in (1, 3):
        raise ArgumentError(f"an image of the shape {shape}", expected=f"three channels: {FORMS}")
    if not channels.numel():
        raise ArgumentError(f"an image of the shape {shape}", expected="at least one pixel")
    if max(channels.shape) > 4 * MAX_SIDE:
        raise ArgumentError(
            f"an image of the shape {shape}", expected=f"at most {4 * MAX_SIDE:,} to a side"
        )
    if channels.is_complex() or not bool(torch.isfinite(channels).all()):
        raise ArgumentError("an image with numbers that are not finite", expected="finite numbers")
    return channels.expand(-1, -1, 3)


def _to_uint8(channels: Tensor, normalised: Normalised | None) -> Pixels:
    if not channels.is_floating_point():
        values = channels.long()
        if bool((values < 0).any()) or int(values.max()) > 255:
            raise ArgumentError(
                f"an image with whole numbers from {int(values.min())} to {int(values.max())}",
                expected="0 to 255",
            )
        return Pixels(values.to(torch.uint8).contiguous())
    values, assumed = channels.double(), ""
    if normalised is not None:
        values = values * values.new_tensor(normalised.std) + values.new_tensor(normalised.mean)
    elif float(values.min()) < 0 or float(values.max()) > 1:
        low, high = values.min(), values.max()
        values, assumed = (values - low) / (high - low).clamp(min=1e-12), STRETCHED
    return Pixels((values.clamp(0, 1) * 255).round().to(torch.uint8).contiguous(), assumed)


def resize(pixels: Tensor, height: int, width: int) -> Tensor:
    """Resize an image to (height, width, 3)."""
    if pixels.shape[:2] == (height, width):
        return pixels
    from PIL import Image

    image = Image.fromarray(pixels.numpy())
    return torch.from_numpy(np.array(image.resize((width, height), Image.Resampling.BICUBIC)))


def shrink(pixels: Tensor, limit: int) -> Tensor:
    """Shrink an image so that both sides are within a limit; return a smaller image unchanged."""
    h, w = pixels.shape[:2]
    if max(h, w) <= limit:
        return pixels
    share = limit / max(h, w)
    return resize(pixels, max(1, round(h * share)), max(1, round(w * share)))
