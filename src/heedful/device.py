"""The choice of a device, and of the type for matrix products."""

from __future__ import annotations

import torch

from heedful.errors import ArgumentError


def choose_device(name: str, number: int = 0) -> torch.device:
    """Return the device of a name; "auto" chooses a GPU if there is one.

    Args:
        name: a device name of torch, or "auto".
        number: the index of the GPU if the name has none. Each process of a machine passes its
            own number.

    Raises:
        ArgumentError: torch does not know the name, or this machine lacks the device.

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
            remedy='"auto" takes the best device of this machine',
        )
    return device


def choose_matmul_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products; "auto" chooses bfloat16 where that is faster.

    That is on GPUs whose tensor cores support it, and on CPUs with AVX-512 BF16 or AMX (which
    torch reports from 2.10 on).

    >>> choose_matmul_dtype("float32", torch.device("cpu"))
    torch.float32
    """
    is_narrow = _multiplies_bfloat16(device) if name == "auto" else name == "bfloat16"
    return torch.bfloat16 if is_narrow else torch.float32


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
