"""Where to compute, and in what type of numbers."""

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
        is_mps = torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if is_mps else "cpu"
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


def choose_products(name: str, device: torch.device) -> torch.dtype:
    """The type in which matrices are multiplied; "auto" is bfloat16 where that is faster.

    That is a GPU whose tensor cores have it, or a CPU with instructions for it (AVX-512 BF16 or
    AMX; torch says so from 2.10 on).

    >>> choose_products("float32", torch.device("cpu"))
    torch.float32
    """
    is_narrow = _multiplies_bfloat16(device) if name == "auto" else name == "bfloat16"
    return torch.bfloat16 if is_narrow else torch.float32


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return False
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))
