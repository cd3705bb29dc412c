"""Where a benchmark's models run. All is drawn on the CPU and then moved: the same everywhere."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
from torch import Tensor, nn


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option of the command."""
    parser.add_argument("--device", default="cpu", help="as torch has it (default: %(default)s)")


def on(device: str, value: Any) -> Any:
    """A model, or what it is given, on the device."""
    if isinstance(value, Tensor | nn.Module):
        return value.to(device)
    if isinstance(value, dict):
        return {name: on(device, one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(on(device, one) for one in value)
    return value


def is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def exactly(device: str) -> None:
    """A GPU does the same each time, and no factor in float32 is cut to eleven bits (TF32)."""
    if not is_gpu(device):
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first use
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a model's run as it always is
    torch.backends.cudnn.allow_tf32 = False  # convolutions; products of matrices have it off


def random_state(device: str) -> list[Tensor]:
    """Of all generators that a model on the device may draw from."""
    gpu = [torch.cuda.get_rng_state(device)] if is_gpu(device) else []
    return [torch.get_rng_state(), *gpu]


def now(device: str) -> float:
    """Seconds on the clock, when a GPU has done what it was given."""
    if is_gpu(device):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def highest_allocated() -> int:
    """Bytes, the most that torch has had on the GPU in this process."""
    return torch.cuda.max_memory_allocated()
