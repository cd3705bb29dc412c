"""A GPT's or a BERT's own numbers, from a text to the words that it thinks likely."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.explain.attending import added
from heedful.explain.block import brief, opened, parts_of
from heedful.explain.pieces import looked_up, normed, placed
from heedful.explain.stages import (
    Explanation,
    Formula,
    Section,
    Stage,
    answer,
    check_index,
    held,
)
from heedful.explain.watching import Seen, watch
from heedful.explain.words import Names, masked_word_head, says
from heedful.layers import ShortConvolution
from heedful.models.bert import Bert
from heedful.models.gpt import GPT

Pieces = Callable[[Iterable[int]], Sequence[str]]
LEARNED = "The vectors and weights are those that the model has learned."
ORDERS = {
    True: "Norms stand after the sums, as in document 004 (Zhang) and the 2017 paper (post-norm).",
    False: "Norms stand before attention and feed-forward (pre-norm); in document 004 and the 2017 "
    "paper they stand after the sums (--norm-order post).",
}


@torch.inference_mode()
def explain_gpt(
    model: GPT, ids: Tensor, *, pieces: Pieces, layer: int = 0, head: int = 0
) -> Explanation:
    """Take a text's tokens through a GPT, to the ten likeliest next ones.

    Args:
        model: in evaluation mode, on any device.
        ids: the tokens' ids, (1, N), on the same device.
        pieces: gives the text of each of a list of ids, as a tokenizer's `pieces` does.
        layer: the block to open, from 0; of the others it is said by how much they change things.
        head: the head to look at, from 0.

    Raises:
        ArgumentError: a layer or head that the model has not, more tokens than its context.
    """
    config = model.config
    _check(layer, config.layers, head, config.heads)
    blocks = list(model.blocks)
    with watch([*blocks, *parts_of(blocks[layer]), model.norm]) as seen:
        last = model.hidden_states(ids)[-1][0]
    stages = _arrive(model, ids[0])
    names = Names(config.vocabulary, pieces)
    sections = [Section("From text to vectors", tuple(stages))]
    sections += through(blocks, seen, stages[-1], layer, "block", "tokens")
    end = [ending("final", sections[-1].stages[-1], model.norm, last)]
    end += says(end[-1], model.head, config.tied, "as the next one")
    title = "From the last states to the next token"
    return Explanation(
        title=_title("a GPT", config),
        tokens=tuple(pieces(ids[0].tolist())),
        memory=(),
        sections=(*sections, Section(title, tuple(end), "words")),
        notes=(LEARNED, ORDERS[config.norm_order == "post"]),
        heads=config.heads,
        head=head,
        layers=config.layers,
        layer=layer,
        vocabulary=names,
        asked="tokens after",
        answers=(answer(end[-1], ids.shape[1] - 1, names),),
    )


@torch.inference_mode()
def explain_bert(
    model: Bert,
    ids: Tensor,
    *,
    segments: Tensor,
    pieces: Pieces,
    layer: int = 0,
    head: int = 0,
    mask: int | None = None,
) -> Explanation:
    """Take a text or a pair through a BERT, to the ten likeliest words at each [MASK].

    Args:
        model: in evaluation mode, on any device.
        ids: the tokens' ids, framed, (1, N), on the same device.
        segments: which text of a pair each token is of, (1, N).
        pieces, layer, head: as `explain_gpt`.
        mask: the id of [MASK].

    Raises:
        ArgumentError: as `explain_gpt`.
    """
    config = model.config
    _check(layer, config.layers, head, config.heads)
    blocks = list(model.blocks)
    with watch([*blocks, *parts_of(blocks[layer]), model.norm]) as seen:
        model.hidden_states(ids, segments=segments)
    stages = _arrive_framed(model, ids[0], segments[0], seen)
    names = Names(config.vocabulary, pieces)
    sections = [Section("From text to vectors", tuple(stages))]
    sections += through(blocks, seen, stages[-1], layer, "block", "tokens")
    places = [n for n, id in enumerate(ids[0].tolist()) if id == mask]
    found, missing = [], ""
    last = sections[-1].stages[-1]
    if model.head is None:
        final = ending("final", last, nn.Identity(), last.numbers())
        sections.append(Section("The last states", (final,)))
        missing = (
            "The model has no masked-word head: the walk ends at the states above, from which "
            "others make a vector for a whole text. No word is guessed."
        )
    else:
        end = masked_word_head(last, model.head)
        sections.append(Section("From the last states to a word", tuple(end), "words"))
        found = [answer(end[-1], place, names) for place in places]
        if not found:
            word = "[MASK]" if mask is None else names[mask]
            missing = f"Write {word} for a word of the text, and the model guesses it."
    return Explanation(
        title=_title("a BERT", config),
        tokens=tuple(pieces(ids[0].tolist())),
        memory=(),
        sections=tuple(sections),
        notes=(LEARNED, ORDERS[True]),
        heads=config.heads,
        head=head,
        layers=config.layers,
        layer=layer,
        vocabulary=names,
        asked="words for",
        answers=tuple(found),
        missing=missing,
    )


def through(
    blocks: Sequence[nn.Module], seen: Mapping[nn.Module, Seen], source: Stage, layer: int,
    name: str, rows: str, memory: Stage | None = None, side: str = "",
) -> list[Section]:  # fmt: skip
    """The sections of all blocks: one is opened, the others have a line each."""
    states = [seen[block].made for block in blocks]
    found: list[Section] = []

    def others(first: int, end: int) -> None:
        if first < end:
            read = [seen[block].read for block in blocks[first:end]]
            which = f"{name}s {first} to {end - 1}" if end - first > 1 else f"{name} {first}"
            stages = brief(name, first, states[first:end], read, rows)
            title = f"{which[0].upper()}{which[1:]} of {len(blocks)}"
            found.append(Section(title, tuple(stages), "blocks", side))

    here = min(layer, len(blocks))
    others(0, here)
    if layer < len(blocks):
        arrives = source
        if layer:
            arrives = held("states", states[layer - 1], f"states = {name} {layer - 1}(states)",
                           "", rows)  # fmt: skip
        title = f"{name[0].upper()}{name[1:]} {layer} of {len(blocks)}"
        opening: Any = blocks[layer]
        found += opened(opening, seen, arrives, layer, title, memory, side)
        others(layer + 1, len(blocks))
    return found


def ending(name: str, states: Stage, norm: nn.Module, made: Tensor) -> Stage:
    """What comes out of all blocks: normed once more where the model does so."""
    if isinstance(norm, nn.Identity):
        return held(name, made, f"{name} = {states.name}",
                    "As they come out of the last block, whose own norm was the last.",
                    states.rows, sources=(states,), reads="number")  # fmt: skip
    return normed(name, states, norm, made, "The last norm, after all blocks.")


def ids_stage(ids: Tensor, rows: str) -> Stage:
    """The numbers that stand for the tokens."""
    return held(
        "ids", ids[:, None], "id = place of the token in the vocabulary",
        "The number of each token: a model reads numbers, not letters.", rows, columns="id",
    )  # fmt: skip


def _arrive(model: GPT, ids: Tensor) -> list[Stage]:
    x, width = model.tokens(ids), model.config.width
    embeddings = looked_up(
        "embeddings", x, "embeddings = table[id]",
        f"Each token's row of the model's table: {width} numbers.", "tokens",
        lambda n: int(ids[n]),
    )  # fmt: skip
    found = [ids_stage(ids, "tokens"), embeddings]
    if model.convolution is not None:
        found += _convolved(embeddings, x, model.convolution)
        x = found[-1].numbers()
    if model.config.positions != "rotary":
        where = model.positions[: len(x)].detach().to(x.dtype)
        positions = placed(where, "tokens")
        if model.config.positions == "learned":
            said = "The model's learned vectors for each token's place."
            positions = looked_up("positions", where, "positions = table[place]", said,
                                  "tokens", int)  # fmt: skip
        sentence = "The vector of the token and that of its place, added."
        found += [positions, added("input", [found[-1], positions], sentence, x + where, "input")]
    return found


def _convolved(embeddings: Stage, x: Tensor, convolution: ShortConvolution) -> list[Stage]:
    """What the few tokens before each one add to its vector."""
    weights = [weight.detach() for weight in convolution.weights]

    def how(head: int, row: int, column: int) -> Formula:
        pairs = [
            (float(x[row - back, column]), float(weight[column]))
            for back, weight in enumerate(weights, 1)
            if back <= row
        ]
        numbers = tuple(number for pair in pairs for number in pair)
        return Formula(" + ".join("{} × {}" for _ in pairs) or "no token stands before", numbers)

    reach = convolution.reach
    which = "vector of the token" if reach == 1 else f"vectors of the {reach} tokens"
    before = held(
        "before", convolution.before(x[None])[0] + 0.0,  # where nothing stands before, no −0
        f"before = Σ weights[i] · embeddings[{'i tokens' if reach > 1 else 'a token'} back]",
        f"The {which} before, each number times a weight that the model has learned"
        f"{', added up' if reach > 1 else ''}: a short convolution.", "tokens", how=how,
    )  # fmt: skip
    sentence = "The token's own vector, and what those before it add."
    return [before, added("joint", [embeddings, before], sentence, convolution(x[None])[0])]


def _arrive_framed(
    model: Bert, ids: Tensor, segments: Tensor, seen: Mapping[nn.Module, Seen]
) -> list[Stage]:
    """A BERT's input: tokens, segments and places, added and normed."""
    x, second = model.tokens(ids), model.segments(segments)
    where = model.positions[: len(ids)].detach()
    embeddings = looked_up(
        "embeddings", x, "embeddings = table[id]",
        f"Each token's row of the model's table: {model.config.width} numbers.", "tokens",
        lambda n: int(ids[n]),
    )  # fmt: skip
    sides = looked_up(
        "segments", second, "segments = table[0 or 1]",
        "A vector for the text that the token is of: row 0 for the first of a pair, 1 for the "
        "second.", "tokens", lambda n: int(segments[n]),
    )  # fmt: skip
    positions = looked_up("positions", where, "positions = table[place]",
                          "The model's learned vectors for each token's place.",
                          "tokens", int)  # fmt: skip
    parts = [embeddings, sides, positions]
    total = added("sum", parts, "The three vectors of each token, added.", x + second + where)
    made = seen[model.norm].made
    about = "Each token's vector brought to one size: what the first block reads."
    return [ids_stage(ids, "tokens"), embeddings, sides, positions, total,
            normed("input", total, model.norm, made, about, kind="input")]  # fmt: skip


def _check(layer: int, layers: int, head: int, heads: int) -> None:
    check_index("layer", layer, layers)
    check_index("head", head, heads)


def _title(kind: str, config: Any) -> str:
    many = "s" if config.layers > 1 else ""
    return (
        f"{kind}: {config.layers} block{many} of {config.heads} head"
        f"{'s' if config.heads > 1 else ''}, width {config.width}"
    )
