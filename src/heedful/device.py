"""Choice of a device, and of the dtype of matrix products."""

from __future__ import annotations

import torch

from heedful.errors import ArgumentError


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of a name; "auto" chooses a GPU if there is one.

    Args:
        name: a device name of torch, or "auto".
        local_rank: this process's rank on its machine; "cuda" means the GPU with this index.

    Raises:
        ArgumentError: torch does not recognise the name, or this machine lacks the device.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        is_mps = torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if is_mps else "cpu"
    try:
        device = torch.device(name)
        if local_rank and device.type == "cuda" and device.index is None:
            device = torch.device("cuda", local_rank)
        torch.empty(0, device=device)  # raises an error if this machine lacks the device
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError(f"{device.type} is not supported")
    except (RuntimeError, AssertionError) as error:
        process = f" for process {local_rank} of this machine" if local_rank else ""
        raise ArgumentError(
            f"device {name!r}{process}",
            expected="auto, cpu, or a cuda or mps device that torch can use",
            cause="this build of torch does not support it, or the machine has no such device",
            remedy='"auto" chooses the best device of this machine',
        ) from error
    return device


def choose_matmul_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return a dtype for matrix products; "auto" chooses bfloat16 where that is faster.

    bfloat16 is faster on GPUs whose tensor cores support it, and on CPUs with AVX-512 BF16 or AMX.

    >>> choose_matmul_dtype("float32", torch.device("cpu"))
    torch.float32
    """
    is_bfloat16 = _multiplies_bfloat16(device) if name == "auto" else name == "bfloat16"
    return torch.bfloat16 if is_bfloat16 else torch.float32


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
