"""Recordings of random models that write attention out as products and a softmax.

    python benchmarks/spellings.py [--models 1000] [--first 0] [--shown 5] [--device cuda]

Each model has one or two layers. The tables list common ways to write each step: projection,
splitting heads, scores, mask, softmax, product with the values, joining heads. The way of each
step, the dtype, sizes and padding are drawn at random; half of the batches of several texts are
also verified. The true weights that models store are compared with the recorded ones. Verdicts:

    replayed                      equal bit for bit: the recording replays the model's operations
    by inputs                     equal up to rounding: computed from query, key, mask and scale
    refused                       not available: refuted, or missed with a reason
    WRONG, LOST, CHANGED, ERROR   another map; no map and no reason; another output; an exception

Models whose output is not finite (by overflow, for example) are skipped. The seeds of failures are
printed; `--first SEED --models 1` repeats one.
"""

# ruff: noqa: D102 - the class docstring describes `forward`
from __future__ import annotations

import argparse
import math
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from placed import add_device, make_deterministic, on
from rich.progress import track
from torch import Tensor, nn

import heedful
from heedful.errors import HeedfulError

LONGEST, WORDS, LOW = 64, 50, -1e4
NEAR = {torch.float64: 1e-9}
ROUNDED = 3e-5  # tolerance of a weight in other types
TYPES = [torch.float32] * 5 + [torch.float64, torch.bfloat16, torch.float16]
BAD = ("WRONG", "LOST", "CHANGED", "ERROR")


class Sizes(NamedTuple):
    """Sizes of a model: query heads H, key heads G, width d of a head."""

    H: int
    G: int
    d: int

    @property
    def all(self) -> int:
        """The width of a token."""
        return self.H * self.d

    @property
    def parts(self) -> list[int]:
        """The widths of queries, keys and values."""
        return [self.all, self.G * self.d, self.G * self.d]


class Separate(nn.Module):
    """Three linear layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.three = nn.ModuleList(nn.Linear(sizes.all, part) for part in sizes.parts)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in self.three]


class Fused(nn.Module):
    """A single linear layer whose output is split."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.parts, self.layer = sizes.parts, nn.Linear(sizes.all, sum(sizes.parts))

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.layer(x).split(self.parts, dim=-1))


class Convolved(nn.Module):
    """A convolution with a kernel of size 1."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.parts, self.layer = sizes.parts, nn.Conv1d(sizes.all, sum(sizes.parts), 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.layer(x.mT).mT.split(self.parts, dim=-1))


class Drawn(nn.Module):
    """A bare parameter instead of a linear layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.parts = sizes.parts
        self.table = nn.Parameter(torch.randn(sizes.all, sum(sizes.parts)) / sizes.all**0.5)

    def forward(self, x: Tensor) -> list[Tensor]:
        return list((x @ self.table).split(self.parts, dim=-1))


Step = Callable[..., Tensor]
PROJECTIONS = [Separate, Fused, Convolved, Drawn]
SPLITS: dict[str, Step] = {  # (B, N, H · d) to (B, H, N, d)
    "view": lambda t, h: t.reshape(*t.shape[:2], h, -1).transpose(1, 2),
    "permute": lambda t, h: t.reshape(*t.shape[:2], h, -1).permute(0, 2, 1, 3).contiguous(),
    "unflatten": lambda t, h: t.unflatten(-1, (h, -1)).movedim(2, 1),
    "chunks": lambda t, h: torch.stack(t.chunk(h, dim=-1), dim=1),
    "heads first": lambda t, h: torch.stack(t.chunk(h, dim=-1)).transpose(0, 1),
}


def by_batches(q: Tensor, k: Tensor) -> Tensor:
    return torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).unflatten(0, q.shape[:2])


def by_baddbmm(q: Tensor, k: Tensor, a: float) -> Tensor:
    q, k, shape = q.flatten(0, 1), k.flatten(0, 1), q.shape[:2]
    nothing = torch.empty(len(q), q.shape[1], k.shape[1], dtype=q.dtype, device=q.device)
    return torch.baddbmm(nothing, q, k.mT, beta=0, alpha=a).unflatten(0, shape)


SCORES: dict[str, Step] = {
    "@": lambda q, k, a: q @ k.mT * a,
    "divided": lambda q, k, a: torch.matmul(q, k.transpose(-2, -1)) / (1 / a),
    "queries scaled": lambda q, k, a: (q * a) @ k.transpose(-1, -2),
    "both scaled": lambda q, k, a: (q * a**0.5) @ (k * a**0.5).mT,
    "einsum": lambda q, k, a: torch.einsum("bhid,bhjd->bhij", q, k) * a,
    "bmm": lambda q, k, a: by_batches(q, k) * a,
    "baddbmm": by_baddbmm,
}
MASKS: dict[str, Step] = {  # of scores, later keys (N, N), padding (B, 1, 1, N), a bias
    "none": lambda s, ahead, pad, bias: s,
    "-inf": lambda s, ahead, pad, bias: s.masked_fill(ahead, -math.inf),
    "-1e4": lambda s, ahead, pad, bias: s.masked_fill(ahead, LOW),
    "the least": lambda s, ahead, pad, bias: s.masked_fill(ahead, torch.finfo(s.dtype).min),
    "added": lambda s, ahead, pad, bias: s + torch.zeros_like(s).masked_fill(ahead, -math.inf),
    "where": lambda s, ahead, pad, bias: torch.where(ahead, torch.tensor(LOW).to(s), s),
    "multiplied": lambda s, ahead, pad, bias: s * ~ahead + LOW * ahead.to(s),
    "padding": lambda s, ahead, pad, bias: s.masked_fill(pad, -math.inf),
    "both, added": lambda s, ahead, pad, bias: s + (ahead | pad).to(s) * LOW,
    "a bias": lambda s, ahead, pad, bias: s + bias,
    "a bias, divided": lambda s, ahead, pad, bias: (s.masked_fill(ahead, LOW) + bias) / 1.3,
}


def written(raised: Tensor, more: float = 0.0) -> Tensor:
    return raised / (raised.sum(dim=-1, keepdim=True) + more)


def with_sink(s: Tensor) -> Tensor:
    return torch.cat([s, torch.zeros_like(s[..., :1])], dim=-1).softmax(dim=-1)[..., :-1]


SOFTMAXES: dict[str, Step] = {
    "function": lambda s: F.softmax(s, dim=-1),
    "float32": lambda s: s.softmax(dim=-1, dtype=torch.float32).to(s.dtype),
    "written out": lambda s: written(s.exp()),
    "highest taken off": lambda s: written((s - s.amax(dim=-1, keepdim=True)).exp()),
    "kept from zero": lambda s: (e := s.exp()) / e.sum(dim=-1, keepdim=True).clamp(min=1e-6),
    "plus one": lambda s: written(s.exp(), 1.0),
    "logarithms": lambda s: s.log_softmax(dim=-1).exp(),
    "logsumexp": lambda s: (s - s.logsumexp(dim=-1, keepdim=True)).exp(),
    "a sink": with_sink,
    "clamped": lambda s: s.clamp(min=torch.finfo(s.dtype).min).softmax(dim=-1),
}
PRODUCTS: dict[str, Step] = {
    "@": lambda w, v: w @ v,
    "einsum": lambda w, v: torch.einsum("bhij,bhjd->bhid", w, v),
    "bmm": lambda w, v: torch.bmm(w.flatten(0, 1), v.flatten(0, 1)).unflatten(0, w.shape[:2]),
    "element by element": lambda w, v: (w[..., None] * v[:, :, None]).sum(dim=-2),
}
JOINS: dict[str, Step] = {
    "reshape": lambda y: y.transpose(1, 2).reshape(len(y), y.shape[2], -1),
    "flatten": lambda y: y.permute(0, 2, 1, 3).flatten(2),
    "cat": lambda y: torch.cat(list(y.unbind(1)), dim=-1),
}
TABLES = (SPLITS, SCORES, MASKS, SOFTMAXES, PRODUCTS, JOINS)


class Attention(nn.Module):
    """A layer with a random way of each step."""

    def __init__(self, rng: random.Random, sizes: Sizes) -> None:
        super().__init__()
        self.ways = [rng.choice(list(table)) for table in TABLES]
        self.sizes, self.norms = sizes, rng.random() < 0.3
        self.projection = rng.choice(PROJECTIONS)(sizes)
        self.out = nn.Linear(sizes.all, sizes.all)
        self.bias = nn.Parameter(torch.randn(sizes.H, LONGEST, LONGEST) / 2)
        self.weights = torch.empty(0)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        sizes, N = self.sizes, x.shape[1]
        split, score, mask, softmax, weigh, join = (
            table[way] for table, way in zip(TABLES, self.ways, strict=True)
        )
        projected = zip(self.projection(x), (sizes.H, sizes.G, sizes.G), strict=True)
        query, key, value = (split(vectors, heads) for vectors, heads in projected)
        if self.norms:
            query, key = 3 * F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        if sizes.G != sizes.H:
            key, value = (y.repeat_interleave(sizes.H // sizes.G, dim=1) for y in (key, value))
        ahead = torch.ones(N, N, dtype=torch.bool, device=x.device).triu(1)
        scores = score(query, key, sizes.d**-0.5)
        weights = softmax(mask(scores, ahead, pad[:, None, None], self.bias[:, :N, :N]))
        self.weights = weights.detach().float().nan_to_num(0.0)
        return self.out(join(weigh(weights, value)))


class Model(nn.Module):
    """Embeddings of words and positions, and one or two normalized residual layers."""

    def __init__(self, rng: random.Random, sizes: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, sizes.all)
        self.places = nn.Parameter(torch.randn(LONGEST, sizes.all) / 3)
        self.blocks = nn.ModuleList(Attention(rng, sizes) for _ in range(rng.choice([1, 2])))

    def forward(self, ids: Tensor, pad: Tensor) -> Tensor:
        x = self.words(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = x + block(F.layer_norm(x, x.shape[-1:]), pad)
        return x


def padding(rng: random.Random, texts: int, length: int) -> Tensor:
    """Return a mask of padding on the right or left of each text; a single text has none."""
    pad = torch.zeros(texts, length, dtype=torch.bool)
    for row in pad if texts > 1 else ():
        count = rng.randrange(length // 2)
        row[length - count :] = rng.random() < 0.5
        row[:count] |= not bool(row.any())
    return pad


def verdicts(seed: int, device: str) -> Iterator[tuple[str, Any]]:
    """Yield the verdict of each call of a random model, and its details."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    heads = rng.choice([2, 3, 4])
    sizes = Sizes(heads, heads if rng.random() < 0.7 else 1, rng.choice([4, 6, 8]))
    model = Model(rng, sizes).eval()
    for block in model.blocks:
        for parameter in block.projection.parameters():
            parameter.data *= rng.choice([1, 1, 3])
    kind = rng.choice(TYPES)
    texts, length = rng.choice([1, 1, 2, 3, 4]), rng.choice([5, 7, 9, 12, 17])
    inputs = torch.randint(WORDS, (texts, length)), padding(rng, texts, length)
    model, inputs = on(device, (model.to(kind), inputs))
    with torch.inference_mode() if rng.random() < 0.3 else torch.no_grad():
        plain = model(*inputs)
        if not bool(plain.isfinite().all()):
            yield "skipped", ""
            return
        try:
            with heedful.record(model) as recording:
                same = torch.equal(model(*inputs), plain)
            weights = [block.weights.cpu() for block in model.blocks]
            if texts > 1 and len(recording) and rng.random() < 0.5:
                recording.verify(model, inputs)
        except Exception as error:  # any exception is a failure of the recorder
            yield "ERROR", repr(error)
            return
    yield from () if same else [("CHANGED", "")]
    yield from call_verdicts(recording, weights, inputs[1].cpu(), NEAR.get(kind, ROUNDED))


def call_verdicts(
    recording: heedful.Recording, weights: list[Tensor], pad: Tensor, tolerance: float
) -> Iterator[tuple[str, Any]]:
    """Compare each layer of each text with the weights that the model stored."""
    missed = " ".join(recording.missed)
    for text, is_padding in enumerate(pad):
        calls = {call.layer: call for call in recording.sequences[text]} if len(recording) else {}
        for layer, maps in enumerate(weights):
            if layer not in calls:
                is_reported = f"blocks.{layer}" in missed
                yield ("refused" if is_reported else "LOST"), str(recording.missed)
                continue
            call, true = calls[layer], maps[text]
            try:
                map_ = call.weights().float().cpu()
            except HeedfulError as error:
                yield "refused", str(error)
                continue
            if map_.shape != true.shape:  # recordings omit padding
                true = true[:, ~is_padding][:, :, ~is_padding]
            error = float((map_ - true).abs().max()) if map_.shape == true.shape else math.inf
            is_replayed = call.map_ is not None
            is_right = torch.equal(map_, true) if is_replayed else error <= tolerance
            verdict = "replayed" if is_replayed else "by inputs"
            details = f"{call.proof}, layout {call.layout}, {error:.2g} off: {call.why}"
            yield (verdict if is_right else "WRONG"), details


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1000, help="number (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first model")
    parser.add_argument("--shown", type=int, default=5, help="failures of a kind that are printed")
    add_device(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    make_deterministic(options.device)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for seed in track(range(options.first, options.first + options.models), "models"):
        for verdict, more in verdicts(seed, options.device):
            counts[verdict] += 1
            if verdict in BAD and counts[verdict] <= options.shown:
                print(f"{verdict:8} seed {seed}: {more}")
    print(", ".join(f"{number:,} {verdict}" for verdict, number in counts.most_common()))
    sys.exit(any(counts[verdict] for verdict in BAD))


if __name__ == "__main__":
    main()
