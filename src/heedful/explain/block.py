"""A block of a model opened: attention, cross-attention and feed-forward, with norms and sums.

Every number is one that the block itself read or gave in a pass over the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.explain.attending import PURPOSES, Causes, added, attend, mix, project
from heedful.explain.pieces import activated, gated, linear, normed
from heedful.explain.stages import Formula, Section, Stage, held, reader_of
from heedful.explain.watching import Seen
from heedful.layers import (
    CrossAttention,
    FeedForward,
    GatedFeedForward,
    Heads,
    MultiHeadAttention,
    PostNormBlock,
    PostNormDecoderBlock,
    PreNormBlock,
    PreNormDecoderBlock,
)

Block = PreNormBlock | PreNormDecoderBlock
NORMED = "Each token's vector brought to one size by the layer's norm"
TABLES = "The weights that make queries, keys and values, as the model has learned them."


def parts_of(block: nn.Module) -> list[nn.Module]:
    """The modules of a block that are watched while it runs."""
    return list(block.modules())


def is_post(block: nn.Module) -> bool:
    """Whether norms stand after the sums, as in document 004 (Zhang) and the 2017 paper."""
    return isinstance(block, PostNormBlock | PostNormDecoderBlock)


def opened(
    block: Block, seen: Mapping[nn.Module, Seen], source: Stage, layer: int, name: str,
    memory: Stage | None = None, side: str = "",
) -> list[Section]:  # fmt: skip
    """The sections of one block.

    Args:
        block: of an encoder or a decoder.
        seen: what its modules did.
        source: what comes to the block.
        layer: its number, from 0.
        name: what it is called, such as "block 0 of 4".
        memory: what the encoder has made, for a decoder's block.
        side: of an encoder–decoder.
    """
    order = "norm after the sum (post-norm)" if is_post(block) else "norm before it (pre-norm)"
    causal = seen[block.attend].keywords.get("causal", False)
    kind = "masked self-attention" if causal else "self-attention"
    found: list[Section] = []

    def add(title: str, what: str, norm: nn.Module, inner: Callable[[Stage], list[Stage]]) -> None:
        last = found[-1].stages[-1] if found else source
        stages = _sublayer(last, seen[norm], norm, inner, what, is_post(block))
        found.append(Section(f"{name}: {title}, {order}", tuple(stages), what, side, layer))

    add(kind, "attention", block.attend_norm, lambda reads: _attention(block.attend, seen, reads))
    if memory is not None:
        cross: CrossAttention = block.cross  # type: ignore[assignment]
        norm: nn.Module = block.cross_norm  # type: ignore[assignment]
        add("cross-attention", "cross-attention", norm,
            lambda reads: _cross(cross, seen, reads, memory))  # fmt: skip
    add("feed-forward", "feed-forward", block.feed_norm, lambda reads: _feed(block.feed, reads))
    return found


def _sublayer(
    source: Stage, seen: Seen, norm: nn.Module, inner: Callable[[Stage], list[Stage]],
    what: str, post: bool,
) -> list[Stage]:  # fmt: skip
    """A layer with its norm and its residual sum, in the model's own order."""
    found, reads = [], source
    if not post:
        found = [normed("normed", source, norm, seen.made, f"{NORMED}; this is what {what} reads.")]
        reads = found[-1]
    found += inner(reads)
    sentence = f"What came to {what} and what it has found, added: the residual sum."
    total = source.numbers() + found[-1].numbers()
    found.append(added(f"sum after {what}", [source, found[-1]], sentence, total))
    if post:
        sentence = f"{NORMED}, after the sum: Add & Norm in document 004."
        found.append(normed("normed", found[-1], norm, seen.made, sentence))
    return found


def _attention(
    layer: MultiHeadAttention, seen: Mapping[nn.Module, Seen], reads: Stage
) -> list[Stage]:
    call = seen[layer]
    rotary = call.keywords.get("rotary")
    heads = layer.project(call.arguments[0], rotary=rotary)
    sizes = [layer.heads, layer.kv_heads, layer.kv_heads]
    weight, bias = layer.projection.weight.detach(), layer.projection.bias
    split = [size * layer.head_width for size in sizes]
    weights = list(weight.split(split))
    biases = [None] * 3 if bias is None else list(bias.detach().split(split))
    tables = [_table(name, w, layer.head_width) for name, w in zip(PURPOSES, weights, strict=True)]
    raw = layer.projection(call.arguments[0])[0].split(split, dim=-1)
    cut = [_cut(vectors, layer.head_width) for vectors in raw]
    vectors = _vectors([reads, reads, reads], tables, cut, biases, layer.heads)
    last, more = list(vectors), []
    norms = [layer.query_norm, layer.key_norm]
    if not isinstance(norms[0], nn.Identity):
        about = "Brought to one size before they are compared, each head by itself (QK-norm)."
        last[:2] = [
            normed(
                f"normed {name}",
                stage,
                norm,
                norm(stage.numbers()),
                about,
                step="normed",
                kind=name,
            )
            for name, stage, norm in zip(PURPOSES, last, norms, strict=False)
        ]
        more += last[:2]
    if rotary is not None:
        last[:2] = [
            _rotated(name, stage, tensor[0], rotary)
            for name, stage, tensor in zip(PURPOSES, last[:2], heads, strict=False)
        ]
        more += last[:2]
    causes = Causes(heads, call.keywords.get("causal", False), mask=call.keywords.get("mask"))
    found = attend(causes, last)
    return [*tables, *vectors, *more, *found, *mix(found[-1], layer.output)]


def _cross(
    layer: CrossAttention, seen: Mapping[nn.Module, Seen], reads: Stage, memory: Stage
) -> list[Stage]:
    call = seen[layer]
    heads = layer.project(*call.arguments[:2])
    weights = [layer.query.weight, *layer.memory.weight.chunk(2)]
    biases: Sequence[Tensor | None] = [None] * 3
    if layer.query.bias is not None:
        biases = [layer.query.bias.detach(), *layer.memory.bias.detach().chunk(2)]
    tables = [
        _table(name, weight.detach(), layer.head_width)
        for name, weight in zip(PURPOSES, weights, strict=True)
    ]
    cut = [tensor[0] for tensor in heads]
    vectors = _vectors([reads, memory, memory], tables, cut, biases, layer.heads)
    found = attend(Causes(heads, mask=call.keywords.get("mask")), vectors)
    return [*tables, *vectors, *found, *mix(found[-1], layer.output)]


def _table(name: str, weight: Tensor, head_width: int) -> Stage:
    """The weights of a projection, cut into heads: (H, width, d)."""
    cut = weight.unflatten(0, (-1, head_width)).transpose(1, 2)
    return held(f"W_{name}", cut, "", TABLES, "width", step="tables", kind="table")


def _cut(joined: Tensor, head_width: int) -> Tensor:
    """(N, H·d) as (H, N, d)."""
    return joined.unflatten(-1, (-1, head_width)).transpose(0, 1)


def _vectors(
    sources: Sequence[Stage], tables: Sequence[Stage], cut: Sequence[Tensor],
    biases: Sequence[Tensor | None], heads: int,
) -> list[Stage]:  # fmt: skip
    """Query, key and value as they come out of their products."""
    found = []
    for name, source, table, vectors, bias in zip(
        Heads._fields, sources, tables, cut, biases, strict=True
    ):
        own = None if bias is None else bias.unflatten(0, (len(vectors), -1))
        made = project(name, vectors, source, table, bias=own, step="vectors")
        if len(vectors) < heads and name != "query":
            shared = f" {heads // len(vectors)} heads share one."
            made = dataclasses.replace(made, sentence=made.sentence + shared)
        found.append(made)
    return found


def _rotated(name: str, source: Stage, made: Tensor, rotary: tuple[Tensor, Tensor]) -> Stage:
    """Queries or keys turned by the angles of their places."""
    cosines, sines = (table.reshape(table.shape[-2:]) for table in rotary)
    half = made.shape[-1] // 2

    read = reader_of(source)

    def how(head: int, row: int, column: int) -> Formula:
        pair, vector = column % half, read(head, row)
        here, other = vector[column], vector[(column + half) % (2 * half)]
        sign = "-" if column < half else "+"
        numbers = (here, float(cosines[row, pair]), other, float(sines[row, pair]))
        return Formula(f"{{}} × {{}} {sign} {{}} × {{}}", numbers)

    return held(
        f"rotated {name}", made,
        f"rotated {name} = {source.name} turned by the angle of its place",
        f"Two numbers {half} apart are turned by an angle that grows with the place (rotary "
        "positions): the score of two tokens then depends on their distance.",
        source.rows, how=how, sources=(source,), reads="pair", step="rotated",
        kind=name,
    )  # fmt: skip


def _feed(layer: nn.Module, reads: Stage) -> list[Stage]:
    """The feed-forward layer: to its inner width, the activation, and back."""
    if not isinstance(layer, FeedForward | GatedFeedForward):
        raise ArgumentError(f"a feed-forward layer {type(layer).__name__}", expected="one of ours")
    hidden = layer.output.in_features
    inner = f"Each token by itself is made wider, {reads.shape[-1]:,} to {hidden:,} numbers."
    if isinstance(layer, GatedFeedForward):
        gate, up = layer.enter(reads.numbers()).chunk(2, dim=-1)
        found = [
            *linear("gate", reads, layer.enter, gate, "W_gate",
                    ("The weights of the gate.", inner), slice(0, hidden)),
            *linear("up", reads, layer.enter, up, "W_up",
                    ("The weights of what goes through the gate.", inner), slice(hidden, None)),
        ]  # fmt: skip
        found.append(gated(found[1], found[3], layer.gate))
    else:
        found = linear("inner", reads, layer.enter, layer.enter(reads.numbers()), "W_inner",
                       ("The weights that make a token wider.", inner))  # fmt: skip
        found.append(activated(found[-1], layer.activation))
    made = layer(reads.numbers())
    return found + linear(
        "fed", found[-1], layer.output, made, "W_back",
        (f"The weights that bring {hidden:,} numbers back to {made.shape[-1]:,}.",
         "Back to the width of the model: what the token has made of what it gathered."),
        kind="fed",
    )  # fmt: skip


def brief(
    name: str, first: int, states: Sequence[Tensor], read: Sequence[Tensor], rows: str
) -> list[Stage]:
    """A stage for each block that is not opened: what it gives, and by how much it changes that.

    Args:
        name: "block", "encoder block" or "decoder block".
        first: the number of the first of them.
        states: what each gives, (N, width).
        read: what each reads, of the same shape.
        rows: what stands along the rows.
    """
    found = []
    for number, (made, came) in enumerate(zip(states, read, strict=True), first):
        change = float(((made - came).norm(dim=-1) / came.norm(dim=-1).clamp_min(1e-12)).mean())
        found.append(
            held(f"{name} {number}", made, f"states = {name} {number}(states)",
                 f"adds to each token {change:.2f} times its length, on average", rows)
        )  # fmt: skip
    return found
