"""Attention by hand, put together at random from the ways in which people write its steps.

    python benchmarks/spellings.py [--models 1000] [--first 0] [--shown 5] [--device cuda]

Each model has one or two layers. How each of them projects, splits heads, scores, masks, takes its
softmax, weighs values and joins heads is drawn from the tables below, and so are its type, its
sizes and its padding; half of the batches are verified. It keeps its own weights aside, and they
are held beside what is recorded of them. The verdicts of calls:

    replayed                      weights are the model's own, bit for bit: its tape was kept
    by causes                     they are so but for rounding, from queries, keys, mask and scale
    refused                       not shown: refuted, or missed with a reason
    WRONG, LOST, CHANGED, ERROR   another map, none and no reason, another output, an exception

A model whose own output is no number everywhere (exponents that overflow, say) is left out. The
seeds of what went wrong are printed, so that `--first SEED --models 1` shows one again.
"""

# ruff: noqa: D102 - `forward` is what the class says
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
ROUNDED = 3e-5  # what rounding explains of a weight in other types
TYPES = [torch.float32] * 5 + [torch.float64, torch.bfloat16, torch.float16]
BAD = ("WRONG", "LOST", "CHANGED", "ERROR")


class Sizes(NamedTuple):
    """Of a model: heads H, heads of keys G, width d of a head."""

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

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        self.three = nn.ModuleList(nn.Linear(of.all, part) for part in of.parts)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [one(x) for one in self.three]


class Fused(nn.Module):
    """One linear layer, whose output is split."""

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        self.parts, self.layer = of.parts, nn.Linear(of.all, sum(of.parts))

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.layer(x).split(self.parts, dim=-1))


class Convolved(nn.Module):
    """A convolution of one place."""

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        self.parts, self.layer = of.parts, nn.Conv1d(of.all, sum(of.parts), 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.layer(x.mT).mT.split(self.parts, dim=-1))


class Drawn(nn.Module):
    """A parameter that tokens are multiplied with."""

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        self.parts = of.parts
        self.table = nn.Parameter(torch.randn(of.all, sum(of.parts)) / of.all**0.5)

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
MASKS: dict[str, Step] = {  # of scores, what is ahead (N, N), padding (B, 1, 1, N), a bias
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
    """One layer, with a way of each step."""

    def __init__(self, chance: random.Random, of: Sizes) -> None:
        super().__init__()
        self.ways = [chance.choice(list(table)) for table in TABLES]
        self.of, self.norms = of, chance.random() < 0.3
        self.projection = chance.choice(PROJECTIONS)(of)
        self.out = nn.Linear(of.all, of.all)
        self.bias = nn.Parameter(torch.randn(of.H, LONGEST, LONGEST) / 2)
        self.own = torch.empty(0)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        of, N = self.of, x.shape[1]
        split, score, mask, softmax, weigh, join = (
            table[way] for table, way in zip(TABLES, self.ways, strict=True)
        )
        given = zip(self.projection(x), (of.H, of.G, of.G), strict=True)
        query, key, value = (split(one, heads) for one, heads in given)
        if self.norms:
            query, key = 3 * F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        if of.G != of.H:
            key, value = (one.repeat_interleave(of.H // of.G, dim=1) for one in (key, value))
        ahead = torch.ones(N, N, dtype=torch.bool, device=x.device).triu(1)
        scores = score(query, key, of.d**-0.5)
        weights = softmax(mask(scores, ahead, pad[:, None, None], self.bias[:, :N, :N]))
        self.own = weights.detach().float().nan_to_num(0.0)
        return self.out(join(weigh(weights, value)))


class Model(nn.Module):
    """Layers between norms, over words and places."""

    def __init__(self, chance: random.Random, of: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, of.all)
        self.places = nn.Parameter(torch.randn(LONGEST, of.all) / 3)
        self.blocks = nn.ModuleList(Attention(chance, of) for _ in range(chance.choice([1, 2])))

    def forward(self, ids: Tensor, pad: Tensor) -> Tensor:
        x = self.words(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            x = x + block(F.layer_norm(x, x.shape[-1:]), pad)
        return x


def padding(chance: random.Random, texts: int, length: int) -> Tensor:
    """Where each text is padded, on the right or on the left; a text alone never is."""
    pad = torch.zeros(texts, length, dtype=torch.bool)
    for one in pad if texts > 1 else ():
        many = chance.randrange(length // 2)
        one[length - many :] = chance.random() < 0.5
        one[:many] |= not bool(one.any())
    return pad


def verdicts(seed: int, device: str) -> Iterator[tuple[str, Any]]:
    """What becomes of each call of one model, and what more there is to say."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    heads = chance.choice([2, 3, 4])
    of = Sizes(heads, heads if chance.random() < 0.7 else 1, chance.choice([4, 6, 8]))
    model = Model(chance, of).eval()
    for block in model.blocks:
        for parameter in block.projection.parameters():
            parameter.data *= chance.choice([1, 1, 3])
    kind = chance.choice(TYPES)
    texts, length = chance.choice([1, 1, 2, 3, 4]), chance.choice([5, 7, 9, 12, 17])
    given = torch.randint(WORDS, (texts, length)), padding(chance, texts, length)
    model, given = on(device, (model.to(kind), given))
    with torch.inference_mode() if chance.random() < 0.3 else torch.no_grad():
        plain = model(*given)
        if not bool(plain.isfinite().all()):
            yield "left out", ""
            return
        try:
            with heedful.record(model) as recording:
                same = torch.equal(model(*given), plain)
            own = [block.own.cpu() for block in model.blocks]
            if texts > 1 and len(recording) and chance.random() < 0.5:
                recording.verify(model, given)
        except Exception as error:  # whatever it is
            yield "ERROR", repr(error)
            return
    yield from () if same else [("CHANGED", "")]
    yield from of_calls(recording, own, given[1].cpu(), NEAR.get(kind, ROUNDED))


def of_calls(
    recording: heedful.Recording, own: list[Tensor], pad: Tensor, near: float
) -> Iterator[tuple[str, Any]]:
    """What becomes of each layer of each text, beside the model's own weights."""
    missed = " ".join(recording.missed)
    for text, left_out in enumerate(pad):
        calls = {call.layer: call for call in recording.sequences[text]} if len(recording) else {}
        for layer, maps in enumerate(own):
            if layer not in calls:
                is_told = f"blocks.{layer}" in missed
                yield ("refused" if is_told else "LOST"), str(recording.missed)
                continue
            call, true = calls[layer], maps[text]
            try:
                found = call.weights().float().cpu()
            except HeedfulError as error:
                yield "refused", str(error)
                continue
            if found.shape != true.shape:  # padding is left out
                true = true[:, ~left_out][:, :, ~left_out]
            off = float((found - true).abs().max()) if found.shape == true.shape else math.inf
            is_replayed = call.map_ is not None
            near_enough = torch.equal(found, true) if is_replayed else off <= near
            verdict = "replayed" if is_replayed else "by causes"
            told = f"{call.proof}, layout {call.layout}, {off:.2g} off: {call.why}"
            yield (verdict if near_enough else "WRONG"), told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--shown", type=int, default=5, help="how many of each fault to print")
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
    sys.exit(any(counts[one] for one in BAD))


if __name__ == "__main__":
    main()
