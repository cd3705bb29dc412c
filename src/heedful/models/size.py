"""The size of a model, computed from its configuration before the model is created."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.errors import RunError
from heedful.layers.option_names import GATE_NAMES
from heedful.models.configurations import BertConfig, GPTConfig, Seq2SeqConfig

if TYPE_CHECKING:
    from torch import Tensor

Config = GPTConfig | BertConfig | Seq2SeqConfig
CGROUP = Path("/sys/fs/cgroup/memory.max")  # contains the memory limit of a container, in bytes
SPARE = 1 << 24  # numbers that a model may have besides its weights: small position tables
MAX_BLOCKS = 1000  # maximum number of blocks of a model without weights


def check_size(config: Config, tensors: Mapping[str, Tensor] | None, directory: Path) -> None:
    """Raise a `RunError` if a configuration describes a much larger model than its weights.

    A small file may describe a model of any size, and creating it would take all memory.

    Args:
        config: the configuration.
        tensors: the weights by name; None if there are none. Memory must suffice for the tables of
            positions that are computed.
        directory: the directory of both, for the error.
    """
    if tensors is None:
        most, stored = MAX_BLOCKS, 1 << 40
    else:
        most, stored = len(tensors), sum(tensor.numel() for tensor in tensors.values())
    count, positions = parameters(config), _position_numbers(config)
    memory = machine_memory("cpu")
    modules = blocks(config) + getattr(config, "convolution", 0)
    is_large = memory is not None and 4 * positions > memory  # weights may be mapped
    if modules > most or count > 2 * stored + SPARE or is_large:
        raise RunError(
            f"{directory}/config.json describes {modules:,} blocks and "
            f"{count + positions:,} numbers",
            expected="no more than its weights and the memory can hold: "
            f"{most:,} tensors of {stored:,} numbers",
            cause="a damaged file, or a config.json of another model than the weights",
        )


def _position_numbers(config: Config) -> int:
    """Return the numbers in tables of positions that are computed, not loaded."""
    if isinstance(config, BertConfig) or getattr(config, "positions", "") == "learned":
        return 0
    if isinstance(config, GPTConfig) and config.positions == "rotary":
        return 2 * config.context_length * config.width_of_heads
    return 2 * config.context_length * config.width


def parameters(config: Config) -> int:
    """Return the number of a model's parameters, without norms, biases and other small parts.

    >>> parameters(GPTConfig(vocabulary=50257, width=768, layers=12, heads=12))
    123532032
    """
    width = config.width
    head = getattr(config, "head_width", None) or width // config.heads
    heads = config.heads + (getattr(config, "kv_heads", None) or config.heads)
    matrices = 3 if config.activation in GATE_NAMES else 2
    block = 2 * width * heads * head + matrices * width * hidden(config)
    if isinstance(config, BertConfig):
        rows = config.vocabulary + config.context_length + config.segments + width
    elif isinstance(config, Seq2SeqConfig):
        cross = 4 * width * (blocks(config) - config.layers)
        rows = config.vocabulary * (1 + (not config.shared) + (not config.tied)) + cross
    else:
        positions = config.context_length if config.positions == "learned" else 0
        rows = config.vocabulary * (1 + (not config.tied)) + positions
    return rows * width + blocks(config) * block


def hidden(config: Config) -> int:
    """Return the width inside the feed-forward layer."""
    return config.hidden or 4 * config.width


def blocks(config: Config) -> int:
    """Return the number of blocks; in an encoder–decoder, of both parts together."""
    if isinstance(config, Seq2SeqConfig):
        return config.layers + (config.decoder_layers or config.layers)
    return config.layers


def machine_memory(device: str) -> int | None:
    """Return the bytes of memory of a GPU, or of the machine (or container); None if unknown."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    with suppress(OSError, ValueError):  # the file contains "max" if there is no limit
        available = min(available, int(CGROUP.read_text()))
    return available
