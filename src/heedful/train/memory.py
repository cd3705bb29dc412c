"""What a training run needs of memory, by its settings alone: told before any work.

The numbers of a block are what its modules keep of a token for the gradient; the tests compare them
with what real runs keep.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from heedful.errors import ArgumentError
from heedful.layers.choices import GATE_NAMES
from heedful.models import BertConfig, GPTConfig, Seq2SeqConfig
from heedful.train.settings import TrainSettings

Config = GPTConfig | BertConfig | Seq2SeqConfig
NUMBER = 4  # bytes: weights, gradients and activations are float32
# For each weight itself, its gradient, and two means of AdamW; of Muon one, and what it steps by
STATES = 4
STACKS = 5  # of the largest stack of matrices that Muon makes orthogonal at once: it and products
AT_ONCE, MOST_AT_ONCE = 1 << 27, 1 << 29  # numbers that wait to be stacked, by process; in all
MODULES = 60_000  # bytes of the Python objects of a block
LOGITS = 3  # they, their gradient and their softmax
CGROUP = Path("/sys/fs/cgroup/memory.max")  # what a container may have
REMEDIES = {
    "weights": "a smaller --width, --layers or --vocabulary",
    "blocks": "a smaller --batch, --context-length or --width, or fewer --layers",
    "logits": "a smaller --batch, --context-length or --vocabulary",
}


class Memory(NamedTuple):
    """Bytes: of the weights, with gradients and optimizer; of a batch in the blocks; of its logits.

    What the optimizer takes for a step is among the first. `parameters` is how many numbers the
    model has, without vectors (norms and biases).
    """

    parameters: int
    weights: int
    blocks: int
    logits: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.blocks + self.logits


def memory(config: Config, settings: TrainSettings, processes: int = 1) -> Memory:
    """What training takes, an estimate by the shapes: mostly within a third of what a run takes.

    Args:
        config: the model's shape.
        settings: its batch and its optimizer count.
        processes: that train it together; the numbers are those of one.

    >>> gpt2 = GPTConfig(vocabulary=50257, width=768, layers=12, heads=12)
    >>> memory(gpt2, TrainSettings()).parameters
    123532032
    """
    width, decoder = config.width, _decoder_layers(config)
    layers = config.layers + decoder
    heads, pairs = _widths(config)
    hidden = config.hidden or 4 * width
    gated = config.activation in GATE_NAMES
    block = 2 * width * (heads + pairs) + (3 if gated else 2) * width * hidden
    cross = 4 * width * width
    parameters = _rows(config) * width + layers * block + decoder * cross
    if getattr(config, "value_embeddings", False):
        parameters += layers * pairs * config.vocabulary
    kept = 5 * width + 4 * heads + (4 if gated else 2) * hidden
    kept += 6 * heads if getattr(config, "qk_norm", False) else 0
    if getattr(config, "attention_dropout", config.dropout):
        kept += 3 * config.heads * config.context_length  # scores, weights, what is left of them
    kept += pairs if getattr(config, "value_embeddings", False) else 0
    kept += width if getattr(config, "residual_scalars", False) else 0
    tokens = -(-settings.batch // processes) * config.context_length
    convolved = 2 * width * getattr(config, "convolution", 0)
    orthogonal = _orthogonal(config, layers * block + decoder * cross, processes, settings.shard)
    each = parameters / (processes if settings.shard else 1)
    states = (STATES + (1 if settings.mean_weights else 0)) * each
    return Memory(
        parameters,
        round(NUMBER * (states + orthogonal * (settings.optimizer == "muon"))) + MODULES * layers,
        NUMBER * tokens * (layers * kept + decoder * 13 * width + convolved),
        round(NUMBER * LOGITS * tokens * config.vocabulary * _asked(config)),
    )


def at_once(processes: int) -> int:
    """How many numbers of matrices Muon gathers before it makes them orthogonal: 2 GB at most.

    With more processes more at a time, so that each has something to do.
    """
    return min(AT_ONCE * processes, MOST_AT_ONCE)


def _orthogonal(config: Config, matrices: int, processes: int, is_cut: bool) -> float:
    """The numbers that Muon's step holds at its worst moment, beside its own part of what it
    steps by.

    That is the largest stack and its products; or, with several processes, a message of what all of
    them found and what is made of it, beside this one's own part twice, and, where the model is
    cut, what the others step by. A message that is padded, as of 5 matrices for 8 processes, may
    have up to twice as many.
    """
    most = at_once(processes)
    stacked = float(STACKS * min(_stacked(config), most))
    if processes == 1:
        return stacked
    others = 1 - 1 / processes if is_cut else 0.0
    return max(stacked, (2 + 2 / processes + others) * min(matrices, most))


def _stacked(config: Config) -> int:
    """The numbers in the largest stack of matrices of one shape, of all blocks together.

    An encoder–decoder's cross-attention stands with the other attention.
    """
    decoder = _decoder_layers(config)
    layers, (heads, pairs) = config.layers + decoder, _widths(config)
    attention = (2 * layers + 2 * decoder) * heads * (2 if heads == pairs else 1)
    enters = 2 if config.activation in GATE_NAMES else 1
    return config.width * max(attention, layers * enters * (config.hidden or 4 * config.width))


def _decoder_layers(config: Config) -> int:
    if not isinstance(config, Seq2SeqConfig):
        return 0
    return config.decoder_layers or config.layers


def _widths(config: Config) -> tuple[int, int]:
    """The width of all queries, and of all keys."""
    of_one = getattr(config, "head_width", None) or config.width // config.heads
    return config.heads * of_one, (getattr(config, "kv_heads", None) or config.heads) * of_one


def _rows(config: Config) -> int:
    """The rows of all tables, each of the model's width."""
    if isinstance(config, BertConfig):
        return config.vocabulary + config.context_length + config.segments + config.width
    if isinstance(config, Seq2SeqConfig):
        return config.vocabulary * (1 + (not config.shared) + (not config.tied))
    places = config.context_length if config.positions == "learned" else 0
    return config.vocabulary * (1 + (not config.tied)) + places


def _asked(config: Config) -> float:
    """The share of the tokens that logits are made for."""
    if not isinstance(config, BertConfig):
        return 1.0
    from heedful.train.masked_words import ASKED

    return ASKED


def check_memory(config: Config, settings: TrainSettings, device: str, processes: int = 1) -> None:
    """Refuse what the machine has no memory for.

    Args:
        config: the model's shape, as far as it is known.
        settings: how it is trained.
        device: a device's name, as `choose_device` gives it.
        processes: that train it together, each on such a device.

    Raises:
        ArgumentError: it needs more than all of the device's memory.
    """
    needed, has = memory(config, settings, processes), machine_memory(device)
    if has is None or needed.total <= has:
        return
    largest = max(("weights", "blocks", "logits"), key=lambda part: getattr(needed, part))
    raise ArgumentError(
        f"training that takes about {said(needed.total)} of memory ({said(needed.weights)} for "
        f"weights, gradients and the optimizer, {said(needed.blocks)} for a batch in the blocks, "
        f"{said(needed.logits)} for its logits)",
        expected=f"at most the {said(has)} of {'this machine' if device == 'cpu' else device}",
        remedy=f"try {REMEDIES[largest]}",
    )


def machine_memory(device: str) -> int | None:
    """The bytes that a device has in all, for a CPU those of the machine; None where unknown."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return None
    with suppress(OSError, ValueError):  # "max": as much as there is
        has = min(has, int(CGROUP.read_text()))
    return has


def said(size: float) -> str:
    """Bytes for people.

    >>> said(1_234_000_000), said(5 * 10**21)
    ('1.2 GB', '5e+09 TB')
    """
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= unit:
            number = size / unit
            if number >= 10**6:
                return f"{number:.0e} {name}"
            return f"{number:,.0f} {name}" if number >= 100 else f"{number:.1f} {name}"
    return f"{size / 1000:.0f} kB"
