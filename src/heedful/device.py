"""Where to compute."""

from __future__ import annotations

import torch

from heedful.errors import ArgumentError


def choose_device(name: str, number: int = 0) -> torch.device:
    """The device of a name; "auto" takes a GPU where there is one.

    Args:
        name: as torch has it, or "auto".
        number: which of the GPUs it is, where the name says none: of several processes on a
            machine each has its own.

    Raises:
        ArgumentError: a name that torch does not know, or a device that this machine lacks.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = _best()
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if number and device is not None and device.type == "cuda" and device.index is None:
        device = torch.device("cuda", number)
    available = device is not None and (
        device.type == "cpu"
        or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())
        or (device.type == "mps" and torch.backends.mps.is_available())
    )
    if device is None or not available:
        raise ArgumentError(
            f"device {name!r}" + (f" for process {number} of this machine" if number else ""),
            expected="auto, cpu, or a cuda or mps device that torch finds here",
            cause="a torch built without it, or no such device",
            remedy='"auto" takes the best that is here',
        )
    return device


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
