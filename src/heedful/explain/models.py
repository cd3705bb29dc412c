"""A model's own numbers, from a text to the words that it thinks likely."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.explain.block import opened
from heedful.explain.operations import activated, added, bias_of, linear, looked_up, normed, placed
from heedful.explain.stages import Explanation, Formula, Section, Stage, answer, check_index, held
from heedful.layers import ShortConvolution
from heedful.models.bert import Bert, MaskedWordHead
from heedful.models.checks import check_ids
from heedful.models.gpt import GPT
from heedful.models.seq2seq import Seq2Seq

Pieces = Callable[[Iterable[int]], Sequence[str]]
LEARNED = "The vectors and weights are those that the model has learned."
ORDERS = {
    "post": "Norms stand after the sums, as in document 004 (Zhang) and the 2017 paper "
    "(post-norm).",
    "pre": "Norms stand before attention and feed-forward (pre-norm); in document 004 and the 2017 "
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
    about = _about("a GPT", model, pieces, layer, head, config.layers)
    check_ids(ids, config.vocabulary, config.context_length)
    count = ids.shape[1]
    rotary = None
    if config.positions == "rotary":
        rotary = model.cosines[:count], model.sines[:count]
    arrives = _of_gpt(model, ids[0])
    sections = [Section("From text to vectors", tuple(arrives))]
    sections += _through(
        model.blocks, arrives[-1], layer, "block", causal=True, mask=model.mask(), rotary=rotary
    )
    final = _ending("final", sections[-1].stages[-1], model.norm)
    end = (final, *_says(final, model.head, config.tied, "as the next one"))
    sections.append(Section("From the last states to the next token", end, "words"))
    return Explanation(
        **about,
        tokens=tuple(pieces(ids[0].tolist())),
        sections=tuple(sections),
        asked="tokens after",
        answers=(answer(end[-1], count - 1, about["vocabulary"]),),
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
    about = _about("a BERT", model, pieces, layer, head, config.layers)
    check_ids(ids, config.vocabulary, config.context_length)
    arrives = _of_bert(model, ids[0], segments[0])
    sections = [Section("From text to vectors", tuple(arrives))]
    sections += _through(model.blocks, arrives[-1], layer, "block")
    last = sections[-1].stages[-1]
    answers, missing = [], ""
    if model.head is None:
        final = _ending("final", last, nn.Identity())
        sections.append(Section("The last states", (final,)))
        missing = (
            "The model has no masked-word head: the walk ends at the states above, from which "
            "others make a vector for a whole text. No word is guessed."
        )
    else:
        end = tuple(_masked_word_head(last, model.head))
        sections.append(Section("From the last states to a word", end, "words"))
        places = [n for n, id in enumerate(ids[0].tolist()) if id == mask]
        answers = [answer(end[-1], place, about["vocabulary"]) for place in places]
        if not answers:
            word = "[MASK]" if mask is None else about["vocabulary"][mask]
            missing = f"Write {word} for a word of the text, and the model guesses it."
    return Explanation(
        **about,
        tokens=tuple(pieces(ids[0].tolist())),
        sections=tuple(sections),
        asked="words for",
        answers=tuple(answers),
        missing=missing,
    )


@torch.inference_mode()
def explain_seq2seq(
    model: Seq2Seq, source: Tensor, target: Tensor, *, pieces: Pieces, layer: int = 0, head: int = 0
) -> Explanation:
    """Take a source through the encoder and a target through the decoder, to its next tokens.

    Args:
        model: in evaluation mode, on any device.
        source: ids (1, M), closed by the model's end.
        target: ids (1, N) of what is written so far, opened by the model's begin.
        pieces, head: as `explain_gpt`.
        layer: the block to open, of the encoder and of the decoder, from 0.

    Raises:
        ArgumentError: as `explain_gpt`.
    """
    config, counts = model.config, (len(model.encoder), len(model.decoder))
    about = _about("an encoder–decoder", model, pieces, layer, head, *counts)
    for name, ids in (("source", source), ("target", target)):
        check_ids(ids, config.vocabulary, config.context_length, name=name)
    reads = _of_side(model, source[0], "memory")
    sections = [Section("The source, from text to vectors", tuple(reads), side="encoder")]
    sections += _through(model.encoder, reads[-1], layer, "encoder block", side="encoder")
    memory = _ending("memory", sections[-1].stages[-1], model.encoder_norm)
    sections.append(Section("The source as the decoder sees it", (memory,), side="encoder"))
    asks = _of_side(model, target[0], "tokens")
    title = "What is written so far, from text to vectors"
    sections.append(Section(title, tuple(asks), side="decoder"))
    sections += _through(
        model.decoder, asks[-1], layer, "decoder block", memory, "decoder", causal=True
    )
    final = _ending("final", sections[-1].stages[-1], model.decoder_norm)
    end = (final, *_says(final, model.head, config.tied, "as the next one"))
    sections.append(Section("From the last states to the next letter", end, "words"))
    places = range(target.shape[1])
    return Explanation(
        **about,
        tokens=tuple(pieces(target[0].tolist())),
        memory=tuple(pieces(source[0].tolist())),
        sections=tuple(sections),
        asked="tokens after",
        answers=tuple(answer(end[-1], place, about["vocabulary"]) for place in places),
    )


def _about(
    kind: str, model: Any, pieces: Pieces, layer: int, head: int, *layers: int
) -> dict[str, Any]:
    """What is said of a whole model; a layer or head that it has not is refused."""
    config = model.config
    check_index("layer", layer, max(layers))
    check_index("head", head, config.heads)
    blocks = f"{' and '.join(map(str, layers))} block{'s'[: layers != (1,)]}"
    heads = f"{config.heads} head{'s'[: config.heads > 1]}"
    return {
        "title": f"{kind}: {blocks} of {heads}, width {config.width}",
        "notes": (LEARNED, ORDERS[getattr(config, "norm_order", "post")]),
        "heads": config.heads,
        "head": head,
        "layers": max(layers),
        "layer": layer,
        "vocabulary": pieces(range(config.vocabulary)),
    }


def _through(
    blocks: nn.ModuleList, source: Stage, layer: int, name: str, memory: Stage | None = None,
    side: str = "", **attending: Any,
) -> list[Section]:  # fmt: skip
    """The sections of all blocks: one is opened, the others have a line each."""
    found: list[Section] = []
    given = [] if memory is None else [memory.numbers()[None]]

    def others(numbers: range, states: Tensor) -> Tensor:
        """Blocks of which each has a line: by how much it changes what it reads."""
        stages = []
        for number in numbers:
            made = blocks[number](states[None], *given, **attending)[0]
            lengths = (made - states).norm(dim=-1) / states.norm(dim=-1).clamp_min(1e-12)
            sentence = f"adds to each token {lengths.mean():.2f} times its length, on average"
            formula = f"states = {name} {number}(states)"
            stages.append(held(f"{name} {number}", made, formula, sentence, source.rows))
            states = made
        if stages:
            which = f"s {numbers[0]} to {numbers[-1]}" if len(stages) > 1 else f" {numbers[0]}"
            title = f"{name.capitalize()}{which} of {len(blocks)}"
            found.append(Section(title, tuple(stages), "blocks", side))
        return states

    states = others(range(min(layer, len(blocks))), source.numbers())
    if layer < len(blocks):
        arrives = source
        if layer:
            formula = f"states = {name} {layer - 1}(states)"
            arrives = held("states", states, formula, "", source.rows)
        title = f"{name.capitalize()} {layer} of {len(blocks)}"
        found += opened(blocks[layer], arrives, layer, title, memory, side, **attending)
        others(range(layer + 1, len(blocks)), found[-1].stages[-1].numbers())
    return found


def _ending(name: str, states: Stage, norm: nn.Module) -> Stage:
    """What comes out of all blocks: normed once more where the model does so."""
    if isinstance(norm, nn.Identity):
        return held(name, states.numbers(), f"{name} = {states.name}",
                    "As they come out of the last block, whose own norm was the last.",
                    states.rows, sources=(states,), reads="number")  # fmt: skip
    return normed(name, states, norm, "The last norm, after all blocks.")


def _says(states: Stage, head: nn.Linear, tied: bool, where: str) -> list[Stage]:
    """Logits and probabilities (N, V) of the states from which they are made.

    They are as wide as the vocabulary, so each row is computed when it is asked for. `where` is
    the place that a token is likely for.
    """
    width, size = head.in_features, head.out_features
    about = "The token table itself, turned (tied weights)" if tied else "A table of its own"
    table = held(
        "W_vocabulary", head.weight.detach().T, "",
        f"{about}: {width} numbers for each of {size:,} tokens.", "width", columns="vocabulary",
    )  # fmt: skip
    vectors, bias = states.numbers(), bias_of(head)

    @torch.no_grad()
    def raw(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        chosen = list(columns)
        shift = None if bias is None else bias[chosen]
        return nn.functional.linear(vectors[list(rows)], head.weight.detach()[chosen], shift)

    @torch.no_grad()
    def shares(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        return head(vectors[list(rows)]).float().softmax(-1)[:, list(columns)]

    @functools.lru_cache(maxsize=1)  # a row is as wide as the vocabulary
    def of_row(row: int) -> tuple[Tensor, float]:
        numbers = raw([row], range(size))[0].double()
        return numbers, float(numbers.exp().sum())

    def how(_: int, row: int, column: int) -> Formula:
        numbers, total = of_row(row)
        return Formula("e^{} / {}", (float(numbers[column]), total))

    shape = (len(vectors), size)
    logits = Stage(
        "logits", shape,
        f"logits = {states.name} · W_vocabulary" + ("" if bias is None else " + bias"),
        f"A number for each of the {size:,} tokens: how well it fits {where}.",
        states.rows, "vocabulary", raw, (states, table), bias=bias,
    )  # fmt: skip
    probabilities = Stage(
        "probabilities", shape, "probabilities = e^logit / sum of e^logit over all tokens",
        "Softmax: positive shares that sum to 1 in each row.",
        states.rows, "vocabulary", shares, how=how, sources=(logits,), reads="row",
    )  # fmt: skip
    return [table, logits, probabilities]


def _masked_word_head(states: Stage, head: MaskedWordHead) -> list[Stage]:
    """A BERT's way from its last states to logits: a layer, an activation, a norm, the table."""
    about = ("The weights of the masked-word head.", "A layer of the masked-word head.")
    found = linear("transformed", states, head.transform, "W_transform", about)
    found.append(activated(found[-1], head.activation))
    sentence = "Brought to one size; the token table reads this."
    found.append(normed("normed", found[-1], head.norm, sentence))
    return [*found, *_says(found[-1], head.output, tied=True, where="at this place")]


def _ids(ids: Tensor, rows: str = "tokens") -> Stage:
    return held(
        "ids", ids[:, None], "id = place of the token in the vocabulary",
        "The number of each token: a model reads numbers, not letters.", rows, columns="id",
    )  # fmt: skip


def _embeddings(table: nn.Embedding, ids: Tensor) -> Stage:
    sentence = f"Each token's row of the model's table: {table.embedding_dim} numbers."
    return looked_up("embeddings", table(ids), "embeddings = table[id]", sentence, ids)


def _learned_positions(positions: Tensor, count: int) -> Stage:
    sentence = "The model's learned vectors for each token's place."
    table = positions[:count].detach()
    return looked_up("positions", table, "positions = table[place]", sentence, torch.arange(count))


def _of_gpt(model: GPT, ids: Tensor) -> list[Stage]:
    """A GPT's input: tokens, with those before them and with places where it has these."""
    found = [_ids(ids), _embeddings(model.tokens, ids)]
    if model.convolution is not None:
        found += _convolved(found[-1], model.convolution)
    positions = model.config.positions
    if positions != "rotary":
        x = found[-1].numbers()
        where = _learned_positions(model.positions, len(ids))
        if positions == "sinusoidal":
            where = placed(model.positions[: len(ids)].to(x.dtype), "tokens")
        sentence = "The vector of the token and that of its place, added."
        found += [where, added("input", [found[-1], where], sentence, "input")]
    return found


def _convolved(embeddings: Stage, convolution: ShortConvolution) -> list[Stage]:
    """What the few tokens before each one add to its vector."""
    weights = [weight.detach() for weight in convolution.weights]
    x, reach = embeddings.numbers(), convolution.reach

    def how(head: int, row: int, column: int) -> Formula:
        pairs = [
            (float(x[row - back, column]), float(weight[column]))
            for back, weight in enumerate(weights, 1)
            if back <= row
        ]
        numbers = tuple(number for pair in pairs for number in pair)
        return Formula(" + ".join("{} × {}" for _ in pairs) or "no token stands before", numbers)

    which = "vector of the token" if reach == 1 else f"vectors of the {reach} tokens"
    before = held(
        "before", convolution.before(x[None])[0] + 0.0,  # where nothing stands before, no −0
        f"before = Σ weights[i] · embeddings[{'i tokens' if reach > 1 else 'a token'} back]",
        f"The {which} before, each number times a weight that the model has learned"
        f"{', added up' if reach > 1 else ''}: a short convolution.", "tokens", how=how,
    )  # fmt: skip
    sentence = "The token's own vector, and what those before it add."
    return [before, added("joint", [embeddings, before], sentence)]


def _of_bert(model: Bert, ids: Tensor, segments: Tensor) -> list[Stage]:
    """A BERT's input: tokens, segments and places, added and normed."""
    sides = looked_up(
        "segments", model.segments(segments), "segments = table[0 or 1]",
        "A vector for the text that the token is of: row 0 for the first of a pair, 1 for the "
        "second.", segments,
    )  # fmt: skip
    parts = [
        _embeddings(model.tokens, ids), sides, _learned_positions(model.positions, len(ids))
    ]  # fmt: skip
    total = added("sum", parts, "The three vectors of each token, added.")
    about = "Each token's vector brought to one size: what the first block reads."
    return [_ids(ids), *parts, total, normed("input", total, model.norm, about, kind="input")]


def _of_side(model: Seq2Seq, ids: Tensor, rows: str) -> list[Stage]:
    """The embeddings of a source or a target, scaled, and its places."""
    table = model.source_tokens if rows == "memory" else model.target_tokens
    width = model.config.width
    root, x = math.sqrt(width), table(ids)
    embeddings = held(
        "embeddings", root * x, f"embeddings = √{width} × table[id]",
        f"Each token's row of the model's table, {width} numbers, times the root of the width.",
        rows, how=lambda head, row, column: Formula("{} × {}", (root, float(x[row, column]))),
        kind="embeddings",
    )  # fmt: skip
    positions = placed(model.positions[: len(ids)].to(x.dtype), rows)
    sentence = "The vector of the token and that of its place, added."
    total = added("input", [embeddings, positions], sentence, "input")
    return [_ids(ids, rows), embeddings, positions, total]
