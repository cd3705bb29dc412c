"""How memory, time and money grow with GPUs: the formulas of docs/scale.md, each a few lines.

Bytes, seconds, US dollars, tokens. Each constant has its source in the page, section "The numbers".
"""

import math
from typing import NamedTuple

from heedful.models import GPTConfig
from heedful.train.memory import memory
from heedful.train.settings import TrainSettings

STATE = 16  # bytes of a parameter: weight, gradient and AdamW's two means in float32
KEPT = 12  # of them in a checkpoint: all but the gradient
GATHERED, GRADIENT = 2, 4  # bytes of a parameter that travels: bfloat16 weight, float32 gradient
NODE = 8  # GPUs of one machine, joined by NVLink
# Share of the peak that 8 A100 reach (MosaicML, 2,048 tokens); an H100 0.7 of it (1.3, 2.7 and 7 B)
UTILIZATION = ((125e6, 0.448), (356e6, 0.516), (1.316e9, 0.599), (2.652e9, 0.621), (6.659e9, 0.642))
# NCCL's own estimates, in seconds: to begin, and a hop over NVLink and the network
BEGIN, RING, TREE = 8.4e-6, (3.4e-6, 14e-6), (4.0e-6, 14e-6)
WIRE = 0.73  # share of the network's rate that a reduction over machines reaches
EXPOSED = 0.5  # share of the collectives' latency that no work hides: the one number fitted here
BUCKET = 25 * 2**20  # bytes of gradients that DDP reduces at once
GPU_HOURS = 54 * 24 * 16_384 / 419  # that one unexpected interruption takes to come: Llama 3
RESTART = 600  # seconds until all go on again: NCCL's timeout in torch
PRICE = 3.0  # of an H100 for an hour
TOKENS = 20  # to train on, per parameter: Chinchilla


class Gpu(NamedTuple):
    """peak: of bfloat16 products a second; the rest in bytes, and bytes a second one way."""

    name: str
    peak: float
    memory: float
    bandwidth: float
    nvlink: float
    network: float
    factor: float  # of UTILIZATION


H100 = Gpu("H100", 989.4e12, 80e9, 3.35e12, 365e9, 50e9, 0.70)
A100 = Gpu("A100", 312e12, 80e9, 2.04e12, 235e9, 6.25e9, 1.00)


class Shape(NamedTuple):
    """A model, the tokens of a step, and how many texts a GPU takes in one pass."""

    name: str
    parameters: float
    layers: int
    width: int
    context: int
    batch: int
    texts: int
    config: GPTConfig | None = None

    @property
    def flops(self) -> float:
        """Of one token, forward and backward: 6 N, and 12 L d T of attention."""
        return 6 * self.parameters + 12 * self.layers * self.width * self.context


def shape(name: str, batch: int, texts: int, **sizes) -> Shape:
    """A shape from a configuration of heedful; `memory` counts its parameters."""
    alike = {"positions": "learned", "norm": "layer", "activation": "gelu", "qk_norm": False}
    config = GPTConfig(**alike | sizes)
    count = memory(config, TrainSettings()).parameters
    return Shape(
        name, count, config.layers, config.width, config.context_length, batch, texts, config
    )


GPT = {"vocabulary": 50_257}
LLAMA = {"vocabulary": 32_000, "positions": "rotary", "norm": "rms", "activation": "swiglu"}
SHAPES = (
    shape("124 M", 2**19, 16, **GPT, context_length=1024, width=768, layers=12, heads=12),
    shape("350 M", 2**19, 8, **GPT, context_length=2048, width=1024, layers=24, heads=16),
    shape("1.3 B", 2**20, 8, **GPT, context_length=2048, width=2048, layers=24, heads=16),
    shape("2.7 B", 2**20, 4, **GPT, context_length=2048, width=2560, layers=32, heads=32),
    shape(
        "7 B", 2**22, 2, **LLAMA, context_length=4096, width=4096, layers=32, heads=32,
        hidden=11_008, tied=False,
    ),
)  # fmt: skip
GPUS = (1, 8, 64, 256, 1000)


# Memory


class Memory(NamedTuple):
    """Bytes on one GPU. state: weights, gradients, AdamW. copies: bfloat16 weights in use."""

    state: float
    copies: float
    blocks: float
    logits: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


def shards(gpus: int, how: str) -> int:
    """Over how many GPUs the state lies: DDP has all of it on each, HSDP in each machine."""
    return {"ddp": 1, "hsdp": min(gpus, NODE)}.get(how, gpus)


def needs(model: Shape, shards: int = 1, recompute: bool = False) -> Memory:
    """What one GPU holds of a model whose state lies on so many of them.

    heedful's own estimate for one process, with activations in bfloat16. Of shards, two blocks at a
    time are whole. `recompute`: activation checkpointing, where each block keeps its input alone.
    """
    own = memory(model.config, TrainSettings(batch=model.texts))
    state, blocks = STATE * model.parameters / shards, own.blocks / 2
    block = model.parameters / model.layers  # with its part of the tables, a little too much
    copies = GATHERED * model.parameters if shards == 1 else 2 * (GATHERED + GRADIENT) * block
    if recompute:
        inputs = 2 * model.layers * model.width * model.texts * model.context
        blocks = inputs + blocks / model.layers
    return Memory(state, copies, blocks, own.logits)


# Time of a step


class Step(NamedTuple):
    """Seconds of one step on each GPU. hidden: of the wire, behind the products."""

    compute: float
    wire: float
    latency: float
    optimizer: float
    total: float


def utilization(gpu: Gpu, parameters: float) -> float:
    """The share of the peak in one machine: between two measured sizes by their logarithms."""
    sizes, shares = zip(*UTILIZATION, strict=True)
    size = min(max(parameters, sizes[0]), sizes[-1])
    i = max(1, next(i for i, other in enumerate(sizes) if size <= other))
    part = math.log(size / sizes[i - 1]) / math.log(sizes[i] / sizes[i - 1])
    return gpu.factor * (shares[i - 1] + part * (shares[i] - shares[i - 1]))


def step(model: Shape, gpu: Gpu, gpus: int, how: str) -> Step | None:
    """A step of the whole batch on so many GPUs; None where a GPU would get less than a text.

    how: "ddp"; "fsdp", weights gathered for forward and backward; "fsdp-kept", for the forward pass
    alone; "hsdp", which shards in each machine.
    """
    share = model.batch / model.context / gpus  # texts
    if share < 1:
        return None
    passes = math.ceil(share / model.texts)
    work = share * model.context * model.flops / (gpu.peak * utilization(gpu, model.parameters))
    local = model.parameters / shards(gpus, how)
    update = 7 * 4 * local / gpu.bandwidth  # reads four numbers of a parameter, writes three
    if gpus == 1:
        return Step(work, 0.0, 0.0, update, work + update)
    if how == "ddp":
        wire = all_reduce(gpu, GRADIENT * model.parameters, gpus)
        latency = math.ceil(GRADIENT * model.parameters / BUCKET) * tree(gpus)
        seen = max(0.0, wire - work * 2 / 3 / passes)  # behind the last backward pass
    else:
        wire, latency = sharded(model, gpu, gpus, how, passes)
        seen = max(0.0, wire - work)
    return Step(work, wire, latency, update, work + seen + EXPOSED * latency + update)


def sharded(model: Shape, gpu: Gpu, gpus: int, how: str, passes: int) -> tuple[float, float]:
    """Seconds of the wire, and latency, of a step whose weights are gathered block by block."""
    gathers = 1 if how == "fsdp-kept" else 2
    near = shards(gpus, how)
    gathered = gathers * gather(gpu, GATHERED * model.parameters, near)
    reduced = gather(gpu, GRADIENT * model.parameters, near)
    wire = passes * (gathered + reduced)
    latency = passes * model.layers * (gathers + 1) * ring(near)
    if near < gpus:  # the machines' shards of the gradient, once a step
        between = gpus / near
        shard = GRADIENT * model.parameters / near
        wire += 2 * (1 - 1 / between) * shard / (WIRE * gpu.network)
        latency += model.layers * tree(gpus)
    return wire, latency


def all_reduce(gpu: Gpu, size: float, gpus: int) -> float:
    """Seconds to sum so many bytes over all: in each machine, and an eighth between machines."""
    near, nodes = min(gpus, NODE), max(1.0, gpus / NODE)
    inside = 2 * (1 - 1 / near) * size / gpu.nvlink
    between = 2 * (1 - 1 / nodes) * size / near / (WIRE * gpu.network)
    return max(inside, between)


def gather(gpu: Gpu, size: float, gpus: int) -> float:
    """Seconds to make so many bytes whole on each GPU, or to sum and scatter them."""
    return all_reduce(gpu, size, gpus) / 2


def ring(gpus: int) -> float:
    """Latency of a gather: NCCL passes the pieces from one GPU to the next, all of them."""
    nodes = math.ceil(gpus / NODE)
    return BEGIN + (gpus - nodes) * RING[0] + (nodes - 1) * RING[1]


def tree(gpus: int) -> float:
    """Latency of a sum over a tree of machines, up and down again."""
    near, nodes = min(gpus, NODE), math.ceil(gpus / NODE)
    return BEGIN + 2 * ((near - 1) * TREE[0] + math.floor(math.log2(nodes)) * TREE[1])


def speed(model: Shape, gpu: Gpu, gpus: int, how: str) -> float | None:
    """Tokens a second, of all GPUs together."""
    found = step(model, gpu, gpus, how)
    return model.batch / found.total if found else None


# Failures


def interruption(gpus: int) -> float:
    """Mean seconds between two interruptions of a run."""
    return GPU_HOURS * 3600 / gpus


def best_interval(saving: float, between: float) -> float:
    """Seconds from one checkpoint to the next, by Young: √(2 · time of saving · time between)."""
    return math.sqrt(2 * saving * between)


def lost(saving: float, between: float) -> float:
    """The share of time that goes to saving, to work done again and to beginning again."""
    interval = best_interval(saving, between)
    return saving / interval + (interval / 2 + RESTART) / between


# Muon


def orthogonal_flops(rows: int, columns: int) -> int:
    """Products of Muon's three iterations on one matrix, as `heedful.train.muon` does them."""
    n, m = sorted((rows, columns))
    if m > 2 * n:  # two products with the matrix, and nine of its short side alone
        return 2 * (2 * n * n * m) + 9 * (2 * n**3)
    return 3 * (2 * (2 * n * n * m) + 2 * n**3)


def matrices(model: Shape) -> dict[tuple[int, int], int]:
    """How many matrices of each shape, rows and columns, the blocks have."""
    width, config = model.width, model.config
    hidden = config.hidden or 4 * width
    enters = 2 if config.activation == "swiglu" else 1
    each = {(width, width): 4, (hidden, width): enters, (width, hidden): 1}
    return {size: model.layers * number for size, number in each.items()}


def orthogonal_share(model: Shape, gpus: int) -> int:
    """Products of the GPU that does most, where each takes whole matrices, shape by shape."""
    return sum(
        math.ceil(number / gpus) * orthogonal_flops(*size)
        for size, number in matrices(model).items()
    )
