"""How a model cuts an image into patches: told by its own configuration, else by sizes.

Patches are read row by row. Before them may stand tokens of no patch: a class token, a distillation
token, registers. A `Picture` is such an image with its patches as the tokens of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.recording.module_names import Modules, is_in, plain_name

# Parameters of transformers' models and of others, each with the name of its tokens; in this order
APART = {
    "cls_token": "[CLS]", "class_token": "[CLS]", "class_embedding": "[CLS]",
    "distillation_token": "[DIST]", "dist_token": "[DIST]",
    "register_tokens": "[REG", "reg_token": "[REG",
}  # fmt: skip
MOST_APART = 8  # tokens before the patches that sizes alone may tell
STRIDES = (4, 8, 16, 32, 64)  # of a network of convolutions, whose last patch may reach outside
LEAST = 2  # rows and columns of a grid that sizes alone may tell


class Patches(NamedTuple):
    """How one part of a model cuts an image.

    module: the part's name, "" for all of the model. height, width: of a patch, in pixels.
    before: the names of the tokens before the patches. window, shift: where attention is within
    windows of so many patches to a side, and how many patches these are moved by (Swin).
    assumed: what of this is a guess: "" nothing, "apart" what stands before, "assumed" all.
    """

    module: str
    height: int
    width: int
    before: tuple[str, ...] = ()
    window: int = 0
    shift: int = 0
    assumed: str = ""

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        """How many rows and columns of whole patches an image (h, w, 3) has."""
        return pixels.shape[0] // self.height, pixels.shape[1] // self.width

    def has(self, module: str) -> bool:
        """Whether a module is in the part."""
        return is_in(module, self.module)


@dataclass(frozen=True)
class Picture:
    """The image under an axis of a call.

    pixels: uint8 (h, w, 3), as the model saw it. rows, columns: of the patches that cover it.
    places: (L,), for each token the number of its patch, row by row, or −1 for one that is none.
    before: the names of these, such as [CLS]. assumed: in words what of all this is a guess; empty
    where the model told it.
    """

    pixels: Tensor
    rows: int
    columns: int
    places: Tensor
    before: tuple[str, ...] = ()
    assumed: str = ""

    def __repr__(self) -> str:
        h, w = self.pixels.shape[:2]
        apart = f", {', '.join(self.before)} apart" if self.before else ""
        size = f"{h} × {w} pixels, {self.rows} × {self.columns} patches"
        return f"<Picture of {size}{apart}{f', {self.assumed}' if self.assumed else ''}>"

    @property
    def names(self) -> list[str]:
        """A short name for each token: its patch as "row,column", from 0; "[CLS]" and others."""
        others, columns = iter(self.before), self.columns
        return [
            next(others, "[none]") if place < 0 else f"{place // columns},{place % columns}"
            for place in self.places.tolist()
        ]

    def laid(self, row: Tensor) -> Tensor:
        """Weights on the tokens of the axis, (…, L), over the picture: (…, rows, columns).

        A patch that is no token of the axis, as one outside of a window, has NaN.
        """
        table = row.new_full((*row.shape[:-1], self.rows * self.columns), float("nan"))
        is_patch = self.places >= 0
        table[..., self.places[is_patch]] = row[..., is_patch]
        return table.unflatten(-1, (self.rows, self.columns))


def patches_of(model: nn.Module, parts: Modules) -> list[Patches]:
    """How the parts of a model cut images, as its own configuration tells; deepest names first.

    Configurations are transformers': `patch_size`, and a Swin block's window. Of another model a
    convolution that steps as far as it reaches is assumed to be what cuts.
    """
    written = {
        part: name
        for part, name in parts.items()
        if not type(part).__module__.startswith("torch.nn.")
    }
    patches = [*_windows(model, written), *_configured(written)] or list(_convolving(model, parts))
    return sorted(patches, key=lambda cut: -len(cut.module))


def _configured(parts: Modules) -> Iterator[Patches]:
    known: list[str] = []
    for module, name in parts.items():
        config: Any = getattr(module, "config", None) if _has(module, "config") else None
        sides = _sides(getattr(config, "patch_size", None))
        # patches of sounds and of series have another configuration
        sees = any(hasattr(config, field) for field in ("image_size", "num_channels"))
        sees = sees or "vision" in str(getattr(config, "model_type", ""))
        if sides is None or not sees or hasattr(config, "window_size"):
            continue
        if any(is_in(name, outer) for outer in known):
            continue
        known.append(name)
        yield Patches(plain_name(name), *sides, before=_apart(module))


def _windows(model: nn.Module, parts: Modules) -> Iterator[Patches]:
    """Blocks of Swin, which know their window, how far it is moved, and their stage's grid."""
    module: Any
    for module, name in parts.items():
        wanted = ("window_size", "shift_size", "input_resolution")
        if not all(_has(module, each) for each in wanted):
            continue
        config: Any = getattr(module, "config", None) or getattr(model, "config", None)
        image = _sides(getattr(config, "image_size", None))
        stage, sizes = _sides(module.input_resolution), (module.window_size, module.shift_size)
        if image is not None and stage is not None and all(isinstance(n, int) for n in sizes):
            sides = image[0] // stage[0], image[1] // stage[1]
            yield Patches(plain_name(name), *sides, (), *sizes)


def _has(module: Any, name: str) -> bool:
    """As `hasattr`, without the error that torch words for each name that a module lacks."""
    if type(module).__getattr__ is not nn.Module.__getattr__:
        return hasattr(module, name)
    if name in module.__dict__ or name in module._buffers or name in module._parameters:
        return True
    return name in module._modules or hasattr(type(module), name)


def _convolving(model: nn.Module, parts: Modules) -> Iterator[Patches]:
    for module in parts:
        if not isinstance(module, nn.Conv2d) or module.in_channels > 4:
            continue
        height, width = module.kernel_size
        if module.kernel_size == module.stride and min(height, width) > 1:
            yield Patches("", height, width, _apart(model), assumed="assumed")
            return


def _apart(module: nn.Module) -> tuple[str, ...]:
    """The names of the tokens before the patches, by the parameters that they come from."""
    counts = {}
    for name, parameter in module.named_parameters():
        last = name.rpartition(".")[2]
        if last in APART:
            counts[last] = parameter.numel() // parameter.shape[-1]
    return tuple(
        f"{label} {n + 1}]" if label == "[REG" else label
        for last, label in APART.items()
        for n in range(counts.get(last, 0))
    )


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width, of one number or two."""
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        return None
    return int(sides[0]), int(sides[1])


def inferred(tokens: int, height: int, width: int, apart: int | None = None) -> Patches | None:
    """Square patches that cover an image and are as many as some tokens, but for a few before them.

    Where none do so without a rest, those of a network that halves an image several times: the last
    row and column may reach outside of it. `apart` is how many stand before them, where known.

    >>> inferred(197, 224, 224)
    Patches(module='', height=16, width=16, before=('[0]',), window=0, shift=0, assumed='assumed')
    """
    for some in range(MOST_APART + 1) if apart is None else [apart]:
        for side in range(1, min(height, width) // LEAST + 1):
            if height % side or width % side:
                continue
            if (height // side) * (width // side) == tokens - some:
                return Patches("", side, side, numbered(some), assumed="assumed")
    for side in () if apart else STRIDES:
        if -(-height // side) * -(-width // side) == tokens:
            return Patches("", side, side, assumed="assumed")
    return None


def numbered(apart: int) -> tuple[str, ...]:
    """Names of tokens before the patches of which nothing but their number is known."""
    return tuple(f"[{n}]" for n in range(apart))


def places_of(patches: Patches, rows: int, columns: int, window: int = 0) -> Tensor:
    """For each token of an axis, the number of its patch, row by row; −1 for one that is none.

    `window` is the number of the window, of attention within windows.
    """
    if not patches.window:
        apart = torch.full((len(patches.before),), -1, device="cpu")
        return torch.cat([apart, torch.arange(rows * columns, device="cpu")])
    size = patches.window
    table = torch.full((-(-rows // size) * size, -(-columns // size) * size), -1, device="cpu")
    table[:rows, :columns] = torch.arange(rows * columns, device="cpu").view(rows, columns)
    if patches.shift:
        table = table.roll((-patches.shift, -patches.shift), (0, 1))
    windows = table.unfold(0, size, size).unfold(1, size, size).reshape(-1, size * size)
    return windows[window]


def windows_of(patches: Patches, rows: int, columns: int) -> int:
    """How many windows an image has; 1 where attention is over all of it."""
    return -(-rows // patches.window) * -(-columns // patches.window) if patches.window else 1
