"""An estimate of the memory that training takes, by the model's parameters and the batch."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from heedful.errors import ArgumentError
from heedful.layers.options import GATE_NAMES
from heedful.models import BertConfig, GPTConfig, Seq2SeqConfig
from heedful.train.settings import TrainSettings

Config = GPTConfig | BertConfig | Seq2SeqConfig
CGROUP = Path("/sys/fs/cgroup/memory.max")  # what a container may have


def memory(config: Config, settings: TrainSettings, processes: int = 1) -> int:
    """The bytes that training takes in each process: mostly within a third of what it really takes.

    Numbers are float32. For each parameter there are itself, its gradient, and two of the
    optimizer's; Muon has two more while it makes matrices orthogonal. For each token a block keeps
    what its gradient needs, and there are three for each logit: of a BERT, of 15 % of the tokens.

    Args:
        config: the model's shape.
        settings: its batch and its optimizer count.
        processes: how many train the model together.

    >>> gpt2 = GPTConfig(vocabulary=50257, width=768, layers=12, heads=12)
    >>> round(memory(gpt2, TrainSettings(batch=12)) / 1e9, 1)
    4.2
    """
    width, all_parameters = config.width, parameters(config)
    states = 4.0 * all_parameters / (processes if settings.shard else 1)
    if settings.optimizer == "muon":
        states += 2 * min(all_parameters, 1 << 29)
    kept = 9 * width + (4 if config.activation in GATE_NAMES else 2) * _hidden(config)
    if getattr(config, "qk_norm", False):
        kept += 6 * width
    if getattr(config, "attention_dropout", config.dropout):  # scores, weights, what is left
        kept += 3 * config.heads * config.context_length
    if isinstance(config, Seq2SeqConfig):  # cross-attention
        kept += 7 * width
    logits = 3 * config.vocabulary * (0.15 if isinstance(config, BertConfig) else 1.0)
    tokens = -(-settings.batch // processes) * config.context_length
    return round(4 * (states + tokens * (_blocks(config) * kept + logits)))


def parameters(config: Config) -> int:
    """How many parameters a model has, without vectors (norms and biases).

    >>> parameters(GPTConfig(vocabulary=50257, width=768, layers=12, heads=12))
    123532032
    """
    width = config.width
    head = getattr(config, "head_width", None) or width // config.heads
    heads = config.heads + (getattr(config, "kv_heads", None) or config.heads)
    matrices = 3 if config.activation in GATE_NAMES else 2
    block = 2 * width * heads * head + matrices * width * _hidden(config)
    if isinstance(config, BertConfig):
        rows = config.vocabulary + config.context_length + config.segments + width
    elif isinstance(config, Seq2SeqConfig):
        cross = 4 * width * (_blocks(config) - config.layers)
        rows = config.vocabulary * (1 + (not config.shared) + (not config.tied)) + cross
    else:
        places = config.context_length if config.positions == "learned" else 0
        rows = config.vocabulary * (1 + (not config.tied)) + places
    return rows * width + _blocks(config) * block


def _hidden(config: Config) -> int:
    return config.hidden or 4 * config.width


def _blocks(config: Config) -> int:
    """How many blocks there are: of an encoder–decoder those of both."""
    if isinstance(config, Seq2SeqConfig):
        return config.layers + (config.decoder_layers or config.layers)
    return config.layers


def check_memory(config: Config, settings: TrainSettings, device: str, processes: int = 1) -> None:
    """Refuse what the machine has no memory for.

    Args:
        config: the model's shape, as far as it is known.
        settings: how it is trained.
        device: a device's name, as `choose_device` gives it.
        processes: how many train it together, each on such a device.

    Raises:
        ArgumentError: it needs more than all of the device's memory.
    """
    needed, available = memory(config, settings, processes), machine_memory(device)
    if available is not None and needed > available:
        raise ArgumentError(
            f"training that takes about {in_words(needed)} of memory, for {parameters(config):,} "
            f"parameters and a batch of {settings.batch:,} × {config.context_length:,} tokens",
            expected=f"at most the {in_words(available)} of "
            f"{'this machine' if device == 'cpu' else device}",
            remedy="try a smaller --width, --layers, --vocabulary, --context-length or --batch",
        )


def machine_memory(device: str) -> int | None:
    """The bytes that a device has in all, for a CPU those of the machine; None where unknown."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return None
    with suppress(OSError, ValueError):  # "max": as much as there is
        available = min(available, int(CGROUP.read_text()))
    return available


def in_words(size: float) -> str:
    """Bytes for people.

    >>> in_words(1_234_000_000), in_words(5 * 10**21)
    ('1.2 GB', '5e+09 TB')
    """
    unit, name = next(
        ((u, n) for u, n in ((10**12, "TB"), (10**9, "GB")) if size >= u), (10**6, "MB")
    )
    return f"{size / unit:.3g} {name}" if size >= 1e3 * unit else f"{size / unit:.1f} {name}"
