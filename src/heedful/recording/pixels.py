"""Images as they are given, in any of the usual forms, as pixels: uint8 (h, w, 3)."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError

LONGEST = 4096  # pixels of a side
FORMS = "a path, a PIL image, an array (h, w, 3), or a tensor (3, h, w)"
STRETCHED = "colours stretched from the smallest value to the largest"


class Pixels(NamedTuple):
    """An image: uint8 (h, w, 3); `assumed` says in words what of its colours is a guess."""

    data: Tensor
    assumed: str = ""


class Normalised(NamedTuple):
    """What a processor did to each of three channels: (value − mean) / std, of values 0 to 1."""

    mean: Sequence[float]
    std: Sequence[float]


def pixels_of(given: Any, normalised: Normalised | None = None) -> Pixels:
    """The pixels of an image.

    Args:
        given: a path, a PIL image, an array (h, w, 3) or (h, w), uint8 or 0 to 1, or a tensor
            (3, h, w) or (1, h, w).
        normalised: how a tensor of other values was made of values from 0 to 1. Without it they are
            stretched from the smallest to the largest, which `assumed` says.

    Raises:
        ArgumentError: none of these, no file, a file that is no image, no pixels, numbers that are
            not finite.

    >>> pixels_of(torch.ones(3, 2, 5)).data.shape
    torch.Size([2, 5, 3])
    """
    if isinstance(given, str | PathLike):
        given = _read(given)
    if hasattr(given, "convert") and hasattr(given, "getbands"):  # a PIL image
        given = np.asarray(_eight_bits(given))
    if isinstance(given, Tensor):
        table = given.detach().cpu()
        channels = table.movedim(0, -1) if table.ndim == 3 else table
    elif isinstance(given, np.ndarray):
        try:
            channels = torch.from_numpy(np.array(given))  # it may change later, or be read-only
        except TypeError as error:
            raise ArgumentError(f"an image of {given.dtype}", expected="numbers") from error
        channels = channels[..., None] if channels.ndim == 2 else channels
    else:
        raise ArgumentError(f"an image of type {type(given).__name__}", expected=FORMS)
    return _coloured(_checked(channels, given), normalised)


def _read(path: str | PathLike[str]) -> Any:
    """The image in a file, turned as its camera says."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            if max(image.size) > 4 * LONGEST:
                raise ArgumentError(
                    f"{path} of {image.width:,} × {image.height:,} pixels",
                    expected=f"at most {4 * LONGEST:,} to a side",
                )
            image.load()
            return _eight_bits(ImageOps.exif_transpose(image))
    except FileNotFoundError as error:
        raise ArgumentError(f"no image {path}", remedy="check the path") from error
    except UnidentifiedImageError as error:
        raise ArgumentError(
            f"{path} is no image", expected="a PNG, a JPEG or another that Pillow reads"
        ) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        why = " ".join(str(error).split())
        raise ArgumentError(f"the image {path} cannot be read", cause=why) from error


def _eight_bits(image: Any) -> Any:
    """A PIL image in RGB; of greys of 16 bits Pillow itself makes white of all above 255."""
    if image.mode.startswith("I;16"):
        from PIL import Image

        image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    return image.convert("RGB")


def _checked(channels: Tensor, given: Any) -> Tensor:
    """Numbers (h, w, 3)."""
    shape = reprlib.repr(tuple(given.shape))
    if channels.ndim != 3 or channels.shape[-1] not in (1, 3):
        raise ArgumentError(f"an image of the shape {shape}", expected=f"three channels: {FORMS}")
    if not channels.numel():
        raise ArgumentError(f"an image of the shape {shape}", expected="at least one pixel")
    if max(channels.shape) > 4 * LONGEST:
        raise ArgumentError(
            f"an image of the shape {shape}", expected=f"at most {4 * LONGEST:,} to a side"
        )
    if channels.is_complex() or not bool(torch.isfinite(channels).all()):
        raise ArgumentError("an image with numbers that are not finite", expected="finite ones")
    return channels.expand(-1, -1, 3)


def _coloured(channels: Tensor, normalised: Normalised | None) -> Pixels:
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


def resized(pixels: Tensor, height: int, width: int) -> Tensor:
    """The same image of another size, (height, width, 3)."""
    if pixels.shape[:2] == (height, width):
        return pixels
    from PIL import Image

    image = Image.fromarray(pixels.numpy())
    return torch.from_numpy(np.array(image.resize((width, height), Image.Resampling.BICUBIC)))


def limited(pixels: Tensor, longest: int) -> Tensor:
    """The same image, its longest side at most so long."""
    h, w = pixels.shape[:2]
    if max(h, w) <= longest:
        return pixels
    share = longest / max(h, w)
    return resized(pixels, max(1, round(h * share)), max(1, round(w * share)))
