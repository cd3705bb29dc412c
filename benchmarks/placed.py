"""The device of a benchmark. Numbers are drawn on the CPU, so they agree on all devices."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
from torch import Tensor, nn


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="torch's name (default: %(default)s)")


def on(device: str, value: Any) -> Any:
    """Move a model, a tensor or a nested collection of tensors to the device."""
    if isinstance(value, Tensor | nn.Module):
        return value.to(device)
    if isinstance(value, dict):
        return {name: on(device, item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(on(device, item) for item in value)
    return value


def is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def make_deterministic(device: str) -> None:
    """Select deterministic kernels on a GPU, and full float32 precision instead of TF32."""
    if not is_gpu(device):
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first use
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # as by default
    torch.backends.cudnn.allow_tf32 = False  # convolutions; off by default for matrix products


def random_state(device: str) -> list[Tensor]:
    """Return the states of all random generators that a model on the device may use."""
    gpu = [torch.cuda.get_rng_state(device)] if is_gpu(device) else []
    return [torch.get_rng_state(), *gpu]


def now(device: str) -> float:
    """Return the clock in seconds, after a GPU has finished its kernels."""
    if is_gpu(device):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def highest_allocated() -> int:
    """Return the peak number of bytes that torch has allocated on the GPU in this process."""
    return torch.cuda.max_memory_allocated()
