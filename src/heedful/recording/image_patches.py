"""The patches into which a model cuts an image, read from its configuration or inferred.

Patches are in row-major order. Other tokens may precede them: a class token, a distillation token,
registers. A `Picture` is an image whose patches are the tokens of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.recording.module_names import Modules, is_in, plain_name

# Names of parameters that are tokens before the patches, with names for these tokens, in order
EXTRA_TOKENS = {
    "cls_token": "[CLS]", "class_token": "[CLS]", "class_embedding": "[CLS]",
    "distillation_token": "[DIST]", "dist_token": "[DIST]",
    "register_tokens": "[REG", "reg_token": "[REG",
}  # fmt: skip
MAX_EXTRA = 8  # the maximum number of tokens before the patches that `infer_patches` assumes
STRIDES = (4, 8, 16, 32, 64)  # of convolutional networks; their last patches may cross the border
MIN_ROWS = 2  # the minimum number of rows, and of columns, that `infer_patches` assumes


class Patches(NamedTuple):
    """How one part of a model cuts an image.

    module: the name of the part; "" for the full model. height, width: the size of a patch in
    pixels. before: the names of the tokens before the patches. window, shift: the side of an
    attention window and the shift of the windows, in patches (Swin); 0 without windows.
    assumed: "" if nothing is a guess, "apart" if only `before` is, "assumed" if all fields are.
    """

    module: str
    height: int
    width: int
    before: tuple[str, ...] = ()
    window: int = 0
    shift: int = 0
    assumed: str = ""

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        """Return the number of rows and columns of complete patches in an image (h, w, 3)."""
        return pixels.shape[0] // self.height, pixels.shape[1] // self.width

    def contains(self, module: str) -> bool:
        """Return whether a module is in this part of the model, by its name."""
        return is_in(module, self.module)


@dataclass(frozen=True)
class Picture:
    """The image whose patches are the L tokens of a call's queries or keys.

    pixels: uint8 (h, w, 3), as the model read it. rows, columns: the size of the grid of patches.
    patch_indices: (L,), for each token the row-major index of its patch; −1 if it is no patch.
    before: names of tokens that are no patch, such as [CLS]. assumed: a note on guesses, or empty.
    """

    pixels: Tensor
    rows: int
    columns: int
    patch_indices: Tensor
    before: tuple[str, ...] = ()
    assumed: str = ""

    def __repr__(self) -> str:
        h, w = self.pixels.shape[:2]
        extra = f" and {', '.join(self.before)}" if self.before else ""
        size = f"{h} × {w} pixels, {self.rows} × {self.columns} patches"
        return f"<Picture of {size}{extra}{f', {self.assumed}' if self.assumed else ''}>"

    @property
    def names(self) -> list[str]:
        """The name of each token: "row,column" of its patch, from 0; or a name such as "[CLS]"."""
        others, columns = iter(self.before), self.columns
        return [
            next(others, "[none]") if index < 0 else f"{index // columns},{index % columns}"
            for index in self.patch_indices.tolist()
        ]

    def laid(self, row: Tensor) -> Tensor:
        """Arrange weights on the tokens, (…, L), as a grid of patches: (…, rows, columns).

        Patches that are not among the tokens, such as those outside the call's window, are NaN.
        """
        table = row.new_full((*row.shape[:-1], self.rows * self.columns), float("nan"))
        is_patch = self.patch_indices >= 0
        table[..., self.patch_indices[is_patch]] = row[..., is_patch]
        return table.unflatten(-1, (self.rows, self.columns))


def patches_of(model: nn.Module, parts: Modules) -> list[Patches]:
    """Return how the parts of a model cut images; the longest module names come first.

    In transformers, the configuration has `patch_size`, and Swin's blocks have a window. In other
    models, the first convolution with equal stride and kernel size is assumed to cut the image.
    """
    custom = {
        part: name
        for part, name in parts.items()
        if not type(part).__module__.startswith("torch.nn.")
    }
    patches = [*_windows(model, custom), *_configured(custom)] or list(_convolutions(model, parts))
    return sorted(patches, key=lambda cut: -len(cut.module))


def _configured(parts: Modules) -> Iterator[Patches]:
    """Yield the patches of modules of transformers with a vision configuration."""
    configured: list[str] = []
    for module, name in parts.items():
        config: Any = getattr(module, "config", None) if _has_attribute(module, "config") else None
        sides = _sides(getattr(config, "patch_size", None))
        # models of audio and of time series have patches too
        is_vision = any(hasattr(config, field) for field in ("image_size", "num_channels"))
        is_vision = is_vision or "vision" in str(getattr(config, "model_type", ""))
        if sides is None or not is_vision or hasattr(config, "window_size"):
            continue
        if any(is_in(name, outer) for outer in configured):
            continue
        configured.append(name)
        yield Patches(plain_name(name), *sides, before=_extra_tokens(module))


def _windows(model: nn.Module, parts: Modules) -> Iterator[Patches]:
    """Yield the patches of Swin's blocks, which have attributes for window, shift and grid."""
    module: Any
    for module, name in parts.items():
        attributes = ("window_size", "shift_size", "input_resolution")
        if not all(_has_attribute(module, attribute) for attribute in attributes):
            continue
        config: Any = getattr(module, "config", None) or getattr(model, "config", None)
        image = _sides(getattr(config, "image_size", None))
        stage, sizes = _sides(module.input_resolution), (module.window_size, module.shift_size)
        if image is not None and stage is not None and all(isinstance(n, int) for n in sizes):
            sides = image[0] // stage[0], image[1] // stage[1]
            yield Patches(plain_name(name), *sides, (), *sizes)


def _has_attribute(module: Any, name: str) -> bool:
    """Return `hasattr(module, name)` faster: torch builds a long error for a missing name."""
    if type(module).__getattr__ is not nn.Module.__getattr__:
        return hasattr(module, name)
    if name in module.__dict__ or name in module._buffers or name in module._parameters:
        return True
    return name in module._modules or hasattr(type(module), name)


def _convolutions(model: nn.Module, parts: Modules) -> Iterator[Patches]:
    """Yield the patches of the first convolution that cuts an image without overlap, if any."""
    for module in parts:
        if not isinstance(module, nn.Conv2d) or module.in_channels > 4:
            continue
        height, width = module.kernel_size
        if module.kernel_size == module.stride and min(height, width) > 1:
            yield Patches("", height, width, _extra_tokens(model), assumed="assumed")
            return


def _extra_tokens(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the tokens before the patches, inferred from names of parameters."""
    counts = {}
    for name, parameter in module.named_parameters():
        last = name.rpartition(".")[2]
        if last in EXTRA_TOKENS:
            counts[last] = parameter.numel() // parameter.shape[-1]
    return tuple(
        f"{label} {n + 1}]" if label == "[REG" else label
        for last, label in EXTRA_TOKENS.items()
        for n in range(counts.get(last, 0))
    )


def _sides(size: Any) -> tuple[int, int] | None:
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        return None
    return int(sides[0]), int(sides[1])


def infer_patches(tokens: int, height: int, width: int, extra: int | None = None) -> Patches | None:
    """Infer square patches from an image's size and the number of tokens; None if none fit.

    Up to 8 tokens may precede the patches; `extra` is their number, if known. If no such patches
    fit, assume a stride of convolutional networks; the last patches may then cross the border.

    >>> infer_patches(197, 224, 224)
    Patches(module='', height=16, width=16, before=('[0]',), window=0, shift=0, assumed='assumed')
    """
    for count in range(MAX_EXTRA + 1) if extra is None else [extra]:
        for side in range(1, min(height, width) // MIN_ROWS + 1):
            if height % side or width % side:
                continue
            if (height // side) * (width // side) == tokens - count:
                return Patches("", side, side, numbered_names(count), assumed="assumed")
    for side in () if extra else STRIDES:
        if -(-height // side) * -(-width // side) == tokens:
            return Patches("", side, side, assumed="assumed")
    return None


def numbered_names(count: int) -> tuple[str, ...]:
    """Return names for tokens of unknown meaning before the patches: "[0]", "[1]", and so on."""
    return tuple(f"[{n}]" for n in range(count))


def patch_indices_of(patches: Patches, rows: int, columns: int, window: int = 0) -> Tensor:
    """Return the row-major index of each token's patch; −1 for tokens that are not a patch.

    If the model attends within windows, the tokens are those of the window at index `window`.
    """
    if not patches.window:
        extra = torch.full((len(patches.before),), -1, device="cpu")
        return torch.cat([extra, torch.arange(rows * columns, device="cpu")])
    size = patches.window
    table = torch.full((-(-rows // size) * size, -(-columns // size) * size), -1, device="cpu")
    table[:rows, :columns] = torch.arange(rows * columns, device="cpu").view(rows, columns)
    if patches.shift:
        table = table.roll((-patches.shift, -patches.shift), (0, 1))
    windows = table.unfold(0, size, size).unfold(1, size, size).reshape(-1, size * size)
    return windows[window]


def windows_of(patches: Patches, rows: int, columns: int) -> int:
    """Return the number of attention windows of an image; 1 without windows."""
    return -(-rows // patches.window) * -(-columns // patches.window) if patches.window else 1
