"""Layout models that have no map of queries × keys, or never hold a whole map at once."""

# ruff: noqa: D102 - layout_truth.py documents `forward` and `by_definition`

from __future__ import annotations

import math

import torch
from layout_models_text import TextModel, ids
from layout_truth import (
    Attends,
    C,
    D,
    H,
    Layout,
    M,
    N,
    Truth,
    attention,
    causal,
    heads,
    per_text,
    softmax,
)
from torch import Tensor, nn
from torch.nn import functional as F


class Mapless(Attends):
    """Base class without a map: only the output of each sequence is checked."""

    def truth(self, x: Tensor) -> Truth:
        return Truth(torch.cat([self(text[None]) for text in x]), None)


class Linear(Mapless):
    """Linear attention: softmax of queries over their width and of keys over their length."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        context = torch.einsum("bhnd,bhne->bhde", k.softmax(dim=-2), v)
        y = torch.einsum("bhnd,bhde->bhne", q.softmax(dim=-1) * D**-0.5, context)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Performer(Mapless):
    """Performer: random features of queries and keys; the denominator is their sum."""

    def __init__(self, features: int = 6) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(features, D))

    def kernel(self, x: Tensor, is_query: bool) -> Tensor:
        product = torch.einsum("...id,jd->...ij", x * D**-0.25, self.features)
        norm = (x**2).sum(dim=-1, keepdim=True) / 2 * D**-0.5
        axes = (-1,) if is_query else (-1, -2)
        largest = torch.amax(product, dim=axes, keepdim=True)
        return len(self.features) ** -0.5 * (torch.exp(product - norm - largest) + 1e-4)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        q, k = self.kernel(q, True), self.kernel(k, False)
        inverse = 1.0 / torch.einsum("...nd,...d->...n", q, k.sum(dim=-2))
        context = torch.einsum("...nd,...ne->...de", k, v)
        y = torch.einsum("...de,...nd,...n->...ne", context, q, inverse)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Slots(Attends):
    """Slot attention: a softmax over slots, then a weighted mean of the inputs per slot."""

    def __init__(self, slots: int = 3, rounds: int = 2) -> None:
        super().__init__()
        self.slots, self.rounds = nn.Parameter(torch.randn(slots, C)), rounds
        self.cell = nn.GRUCell(C, C)

    def forward(self, x: Tensor) -> Tensor:
        k, v, slots = self.k(x), self.v(x), self.slots.expand(len(x), -1, -1)
        for _ in range(self.rounds):
            scores = torch.einsum("bid,bjd->bij", self.q(slots), k) * C**-0.5
            attn = scores.softmax(dim=1) + 1e-8
            attn = attn / attn.sum(dim=-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, attn)
            slots = self.cell(updates.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return self.out(slots)

    def by_definition(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The maps are the weights of the means."""
        slots, maps = self.slots, []
        for _ in range(self.rounds):
            shares = softmax(self.k(x) @ self.q(slots).T * C**-0.5).T + 1e-8
            maps.append(shares / shares.sum(-1, keepdim=True))
            slots = self.cell(maps[-1] @ self.v(x), slots)
        return maps, self.out(slots)

    def truth(self, x: Tensor) -> Truth:
        each = [self.by_definition(text) for text in x]
        calls = [[maps[r][None] for maps, _ in each] for r in range(self.rounds)]
        return Truth(torch.stack([y for _, y in each]), calls)


class Pools(nn.Module):
    """Attention pooling: a learned query turns each sequence into one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.query = nn.Linear(C, C), nn.Parameter(torch.randn(C))
        self.out = nn.Linear(C, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("bmd,d->bm", torch.tanh(self.inner(x)), self.query)
        return self.out(torch.einsum("bm,bmd->bd", scores.softmax(dim=-1), x))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        map_ = softmax((self.inner(x).tanh() @ self.query)[None])
        return map_[None], self.out((map_ @ x)[0])


class Additive(nn.Module):
    """Bahdanau's attention: a small network scores each encoder state for a decoder state."""

    def __init__(self) -> None:
        super().__init__()
        self.of_query, self.of_key = nn.Linear(C, C), nn.Linear(C, C)
        self.score = nn.Linear(C, 1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        scores = self.score(torch.tanh(self.of_query(query) + self.of_key(keys)))
        weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
        return torch.bmm(weights, keys)

    def by_definition(self, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        scores = [self.score((self.of_query(query) + self.of_key(key)).tanh()) for key in keys]
        map_ = softmax(torch.cat(scores)[None])
        return map_[None], (map_ @ keys)[0]


class Translates(nn.Module):
    """A decoder of three steps, each of which attends to the encoder."""

    def __init__(self, steps: int = 3) -> None:
        super().__init__()
        self.encode, self.attend = nn.GRU(C, C, batch_first=True), Additive()
        self.step, self.steps = nn.GRUCell(C, C), steps

    def forward(self, x: Tensor) -> Tensor:
        keys, last = self.encode(x)
        state, outputs = last[0], []
        for _ in range(self.steps):
            context = self.attend(state.unsqueeze(1), keys)
            state = self.step(context[:, 0], state)
            outputs.append(state)
        return torch.stack(outputs, dim=1)

    def truth(self, x: Tensor) -> Truth:
        calls, outputs = [[] for _ in range(self.steps)], []
        for text in x:
            keys, last = self.encode(text)
            state, states = last[0], []
            for call in calls:
                maps, context = self.attend.by_definition(state, keys)
                call.append(maps)
                state = self.step(context, state)
                states.append(state)
            outputs.append(torch.stack(states))
        return Truth(torch.stack(outputs), calls)


class Online(Attends):
    """Online softmax over blocks of keys, with a running maximum and a running sum."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        top = torch.full((B, H, T, 1), -math.inf, device=x.device)
        total, y = torch.zeros(B, H, T, 1, device=x.device), torch.zeros_like(q)
        for keys, values in zip(k.split(3, dim=2), v.split(3, dim=2), strict=True):
            scores = q @ keys.mT * D**-0.5
            new = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            weights, rescale = torch.exp(scores - new), torch.exp(top - new)
            total = total * rescale + weights.sum(dim=-1, keepdim=True)
            y, top = y * rescale + weights @ values, new
        return self.out((y / total).transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, y = attention(*map(heads, self.projected(x)))
        return maps, self.out(y)


class QueryChunks(Online):
    """Chunks of queries, each with all keys: one call per chunk."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        parts = [(part @ k.mT * D**-0.5).softmax(dim=-1) @ v for part in q.split(3, dim=2)]
        return self.out(torch.cat(parts, dim=2).transpose(1, 2).reshape(B, T, C))

    def truth(self, x: Tensor) -> Truth:
        maps, output = per_text(self.by_definition, x)
        parts = [list(call) for call in zip(*(map_.split(3, 1) for map_ in maps), strict=True)]
        return Truth(output, parts, ([maps],))


class Sigmoid(Attends):
    """Sigmoid attention: rows do not sum to 1."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        weights = torch.sigmoid(q @ k.transpose(-2, -1) * D**-0.5 - math.log(T))
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(heads, self.projected(x))
        scores = [q[h] @ k[h].T * D**-0.5 for h in range(H)]
        maps = torch.stack([1 / (1 + len(x) * (-score).exp()) for score in scores])
        return maps, self.out(torch.cat([*(maps @ v)], dim=-1))


class Cached(Attends):
    """One token at a time; keys and values are written into a preallocated cache."""

    SIZE = 8

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor], start: int) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (y.view(B, T, H, D).transpose(1, 2) for y in self.projected(x))
        for buffer, new in zip(cache, (k, v), strict=True):
            buffer[:, :, start : start + T] = new
        keys, values = (buffer[:, :, : start + T] for buffer in cache)
        weights = F.softmax(q @ keys.transpose(2, 3) / math.sqrt(D), dim=-1)
        return self.out((weights @ values).transpose(1, 2).reshape(B, T, C))

    def by_definition(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps, y = attention(*map(heads, self.projected(x)), causal(len(x)))
        return maps, self.out(y)


class Generates(nn.Module):
    """Reads one token at a time; call t has t + 1 keys."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attend = nn.Embedding(20, C), Cached()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        shape = (len(tokens), H, Cached.SIZE, D)
        cache = tuple(torch.zeros(shape, device=x.device) for _ in range(2))
        steps = [self.attend(x[:, t : t + 1], cache, t) for t in range(tokens.shape[1])]
        return torch.cat(steps, dim=1)

    def truth(self, tokens: Tensor) -> Truth:
        maps, output = per_text(self.attend.by_definition, self.embed(tokens))
        steps = range(tokens.shape[1])
        calls = [[map_[:, t : t + 1, : t + 1] for map_ in maps] for t in steps]
        return Truth(output, calls)


LAYOUTS = {
    "linear attention": Layout(Linear, lambda: (torch.randn(2, N, C),)),
    "Performer": Layout(Performer, lambda: (torch.randn(2, N, C),)),
    "slot attention": Layout(Slots, lambda: (torch.randn(2, M, C),)),
    "pooling": Layout(Pools, lambda: (torch.randn(3, M, C),)),
    "Bahdanau": Layout(Translates, lambda: (torch.randn(2, M, C),)),
    "online softmax": Layout(lambda: TextModel(Online), lambda: (ids(2, M),)),
    "queries in parts": Layout(QueryChunks, lambda: (torch.randn(2, M, C),)),
    "sigmoid": Layout(lambda: TextModel(Sigmoid), lambda: (ids(2, N),)),
    "a cache of fixed size": Layout(Generates, lambda: (ids(2, N),)),
}
