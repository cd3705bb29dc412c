"""Explanations of a whole model: from a text to the tokens that the model predicts."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.explain.block import block_sections, deferred_block
from heedful.explain.common_stages import (
    POSITION_SUM,
    activation_stage,
    bias_of,
    linear_stages,
    lookup_stage,
    norm_stage,
    position_stage,
    sinusoid_stage,
    sum_stage,
)
from heedful.explain.stage_types import Explanation, Formula, Section, Stage, answer, stored
from heedful.layers import ShortConvolution
from heedful.models.bert import Bert, MaskedWordHead
from heedful.models.checks import check_ids, check_logits
from heedful.models.gpt import GPT
from heedful.models.seq2seq import Seq2Seq
from heedful.ops.indexing import check_index

Pieces = Callable[[Iterable[int]], Sequence[str]]
ORIGIN = "All vectors and weights come from the model."
ORDERS = {
    "post": "Each residual sum is followed by a norm (post-norm), as in document 004 (Zhang) and "
    "in Vaswani et al. (2017).",
    "pre": "Norms come before attention and feed-forward (pre-norm). In document 004 (Zhang) and "
    "in Vaswani et al. (2017), norms follow the residual sums (`heedful train --norm-order post`).",
}


@torch.inference_mode()
def explain_gpt(
    model: GPT, ids: Tensor, *, pieces: Pieces, layer: int = 0, head: int = 0
) -> Explanation:
    """Explain a GPT's pass over a text, up to the ten likeliest next tokens.

    Args:
        model: a GPT in evaluation mode, on any device.
        ids: the tokens' ids, (1, N), on the same device.
        pieces: a function that returns a label for each id, such as a tokenizer's `pieces`.
        layer: the block to show in detail, from 0; every other block is a single stage.
        head: the head to show, from 0.

    Raises:
        ArgumentError: the model has no such layer, head or id, or the text exceeds the context.
    """
    config = model.config
    fields = _common_fields("a GPT", model, pieces, layer, head, config.layers)
    check_ids(ids, config.vocabulary, config.context_length)
    count = ids.shape[1]
    rotary = (model.cosines[:count], model.sines[:count]) if config.positions == "rotary" else None
    embedded = _gpt_input(model, ids[0])
    sections = [Section("From text to vectors", tuple(embedded))]
    sections += _all_blocks(
        model.blocks, embedded[-1], layer, "block", causal=True, mask=model.mask(), rotary=rotary
    )
    sections.append(_next_token(sections[-1].stages[-1], model.norm, model.head, config.tied))
    return Explanation(
        **fields,
        tokens=tuple(pieces(ids[0].tolist())),
        sections=tuple(sections),
        predicted="tokens after",
        answers=(answer(sections[-1].stages[-1], count - 1, fields["vocabulary"]),),
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
    """Explain a BERT's pass over a text or a pair, up to the ten likeliest words at each [MASK].

    Args:
        model: a BERT in evaluation mode, on any device.
        ids: the ids of all tokens, including special tokens, (1, N), on the same device.
        segments: for each token, the index (0 or 1) of its text, (1, N).
        pieces, layer, head: as in `explain_gpt`.
        mask: the id of [MASK]; if None, no words are predicted.

    Raises:
        ArgumentError: as in `explain_gpt`.
    """
    config = model.config
    fields = _common_fields("a BERT", model, pieces, layer, head, config.layers)
    check_ids(ids, config.vocabulary, config.context_length)
    embedded = _bert_input(model, ids[0], segments[0])
    sections = [Section("From text to vectors", tuple(embedded))]
    sections += _all_blocks(model.blocks, embedded[-1], layer, "block")
    last = sections[-1].stages[-1]
    answers, missing = [], ""
    if model.head is None:
        final = _final_states("final", last, nn.Identity())
        sections.append(Section("The last states", (final,)))
        missing = (
            "The model has no masked-word head, so it predicts no words. The walk ends at the last "
            "states, which such models often combine into a single vector for the text."
        )
    else:
        end = tuple(_masked_word_head(last, model.head))
        sections.append(Section("From the last states to a word", end, "words"))
        positions = [n for n, id in enumerate(ids[0].tolist()) if id == mask]
        answers = [answer(end[-1], position, fields["vocabulary"]) for position in positions]
        if not answers:
            word = "[MASK]" if mask is None else fields["vocabulary"][mask]
            missing = f"Write {word} in place of a word, and the model predicts that word."
    return Explanation(
        **fields,
        tokens=tuple(pieces(ids[0].tolist())),
        sections=tuple(sections),
        predicted="words for",
        answers=tuple(answers),
        missing=missing,
    )


@torch.inference_mode()
def explain_seq2seq(
    model: Seq2Seq, source: Tensor, target: Tensor, *, pieces: Pieces, layer: int = 0, head: int = 0
) -> Explanation:
    """Explain an encoder–decoder's pass, up to the ten likeliest tokens after each target token.

    Args:
        model: an encoder–decoder in evaluation mode, on any device.
        source: ids (1, M) of the source, with the end token.
        target: ids (1, N) of the target so far, with the begin token.
        pieces, head: as in `explain_gpt`.
        layer: the block of the encoder and of the decoder to show in detail, from 0.

    Raises:
        ArgumentError: as in `explain_gpt`.
    """
    config, counts = model.config, (len(model.encoder), len(model.decoder))
    fields = _common_fields("an encoder–decoder", model, pieces, layer, head, *counts)
    for name, ids in (("source", source), ("target", target)):
        check_ids(ids, config.vocabulary, config.context_length, name=name)
    embedded = _seq2seq_input(model, source[0], "memory")
    sections = [Section("The source, from text to vectors", tuple(embedded), side="encoder")]
    sections += _all_blocks(model.encoder, embedded[-1], layer, "encoder block", side="encoder")
    memory = _final_states("memory", sections[-1].stages[-1], model.encoder_norm)
    sections.append(Section("The encoder's output, for the decoder", (memory,), side="encoder"))
    embedded = _seq2seq_input(model, target[0], "tokens")
    title = "The target so far, from text to vectors"
    sections.append(Section(title, tuple(embedded), side="decoder"))
    sections += _all_blocks(
        model.decoder, embedded[-1], layer, "decoder block", memory, "decoder", causal=True
    )
    last = sections[-1].stages[-1]
    sections.append(_next_token(last, model.decoder_norm, model.head, config.tied))
    shares, vocabulary = sections[-1].stages[-1], fields["vocabulary"]
    return Explanation(
        **fields,
        tokens=tuple(pieces(target[0].tolist())),
        memory=tuple(pieces(source[0].tolist())),
        sections=tuple(sections),
        predicted="tokens after",
        answers=tuple(answer(shares, n, vocabulary) for n in range(target.shape[1])),
    )


def _common_fields(
    kind: str, model: Any, pieces: Pieces, layer: int, head: int, *layers: int
) -> dict[str, Any]:
    """Check layer and head, and return the fields of `Explanation` that all models share."""
    config = model.config
    check_index("layer", layer, max(layers))
    check_index("head", head, config.heads)
    blocks = f"{' and '.join(map(str, layers))} block{'s'[: layers != (1,)]}"
    heads = f"{config.heads} head{'s'[: config.heads > 1]}"
    return {
        "title": f"{kind}: {blocks} of {heads}, width {config.width}",
        "notes": (ORIGIN, ORDERS[getattr(config, "norm_order", "post")]),
        "heads": config.heads,
        "head": head,
        "layers": max(layers),
        "layer": layer,
        "vocabulary": pieces(range(config.vocabulary)),
    }


def _all_blocks(
    blocks: nn.ModuleList, source: Stage, layer: int, name: str, memory: Stage | None = None,
    side: str = "", **attending: Any,
) -> list[Section]:  # fmt: skip
    """Return the sections of all blocks: every stage of block `layer`, one per other block."""
    sections: list[Section] = []
    memories = [] if memory is None else [memory.numbers()[None]]

    def run(numbers: range, previous: Stage) -> Stage:
        """Run some blocks, append a section with a stage per block, return the last stage."""
        stages = []
        for number in numbers:
            states = previous.numbers()
            output = blocks[number](states[None], *memories, **attending)[0]
            lengths = (output - states).norm(dim=-1) / states.norm(dim=-1).clamp_min(1e-12)
            sentence = f"changes a token's vector by {lengths.mean():.2f} of its length, on average"
            formula = f"states = {name} {number}(states)"
            origin = deferred_block(blocks[number], previous, memory, **attending)
            previous = stored(f"{name} {number}", output, formula, sentence, source.rows,
                              rule="block", origin=origin)  # fmt: skip
            stages.append(previous)
        if stages:
            span = f"s {numbers[0]} to {numbers[-1]}" if len(stages) > 1 else f" {numbers[0]}"
            title = f"{name.capitalize()}{span} of {len(blocks)}"
            sections.append(Section(title, tuple(stages), "blocks", side))
        return previous

    previous = run(range(min(layer, len(blocks))), source)
    if layer < len(blocks):
        inputs = source
        if layer:
            inputs = dataclasses.replace(previous, name="states", sentence="")
        title = f"{name.capitalize()} {layer} of {len(blocks)}"
        sections += block_sections(blocks[layer], inputs, layer, title, memory, side, **attending)
        run(range(layer + 1, len(blocks)), sections[-1].stages[-1])
    return sections


def _final_states(name: str, states: Stage, norm: nn.Module) -> Stage:
    """Return the stage of the states after all blocks, and after a final norm if there is one."""
    if isinstance(norm, nn.Identity):
        return stored(name, states.numbers(), f"{name} = {states.name}",
                      "The output of the last block, which ends with a norm.",
                      states.rows, sources=(states,), reads="number", rule="same")  # fmt: skip
    return norm_stage(name, states, norm, "Each token's vector after all blocks, normalised.")


def _next_token(last: Stage, norm: nn.Module, head: nn.Linear, tied: bool) -> Section:
    """Return the section from the output of the last block to the next token."""
    final = _final_states("final", last, norm)
    end = (final, *_predictions(final, head, tied, "as the next token"))
    return Section("From the last states to the next token", end, "words")


def _predictions(states: Stage, head: nn.Linear, tied: bool, ending: str) -> list[Stage]:
    """Return the stages of the output weights, logits and probabilities (N, V).

    Rows of logits and probabilities are computed on request. `ending` is the end of the logits'
    sentence, such as "as the next token".
    """
    width, size = head.in_features, head.out_features
    origin = "The embedding table, transposed (tied weights)" if tied else "A separate table"
    table = stored(
        "W_vocabulary", head.weight.detach().T, "",
        f"{origin}: {width} numbers for each of {size:,} tokens.", "width", columns="vocabulary",
    )  # fmt: skip
    vectors, bias = states.numbers(), bias_of(head)

    @torch.no_grad()
    def raw(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        chosen = list(columns)
        shift = None if bias is None else bias[chosen]
        return nn.functional.linear(vectors[list(rows)], head.weight.detach()[chosen], shift)

    @torch.no_grad()
    def shares(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        return check_logits(head(vectors[list(rows)])).softmax(-1)[:, list(columns)]

    @functools.lru_cache(maxsize=1)  # a row is as wide as the vocabulary
    def row_sum(row: int) -> tuple[Tensor, float]:
        numbers = raw([row], range(size))[0].double()
        return numbers, float(numbers.exp().sum())

    def number_formula(_: int, row: int, column: int) -> Formula:
        numbers, total = row_sum(row)
        return Formula("e^{} / {}", (float(numbers[column]), total))

    shape = (len(vectors), size)
    logits = Stage(
        "logits", shape,
        f"logits = {states.name} · W_vocabulary" + ("" if bias is None else " + bias"),
        f"A score for each of the {size:,} tokens of the vocabulary: how well each fits {ending}.",
        states.rows, "vocabulary", raw, (states, table), bias=bias,
    )  # fmt: skip
    probabilities = Stage(
        "probabilities", shape, "probabilities = e^logit / sum of e^logit over all tokens",
        "Softmax turns each row of logits into positive probabilities that sum to 1.",
        states.rows, "vocabulary", shares, number_formula=number_formula, sources=(logits,),
        reads="row", rule="softmax",
    )  # fmt: skip
    return [table, logits, probabilities]


def _masked_word_head(states: Stage, head: MaskedWordHead) -> list[Stage]:
    """Return the stages of a BERT's masked-word head: layer, activation, norm, predictions."""
    layer = "the first layer of the masked-word head"
    sentences = (f"The weights of {layer}.", f"The output of {layer}.")
    stages = linear_stages("transformed", states, head.transform, "W_transform", sentences)
    stages.append(activation_stage(stages[-1], head.activation))
    sentence = "Each vector, normalised; next it is compared with each row of the embedding table."
    stages.append(norm_stage("normed", stages[-1], head.norm, sentence))
    return [*stages, *_predictions(stages[-1], head.output, tied=True, ending="at this position")]


def _ids(ids: Tensor, rows: str = "tokens") -> Stage:
    return stored(
        "ids", ids[:, None], "id = index of the token in the vocabulary",
        "The id of each token, because a model reads numbers, not letters.", rows, columns="id",
        rule="ids",
    )  # fmt: skip


def _embeddings(table: nn.Embedding, ids: Tensor) -> Stage:
    sentence = f"Each token's row of the embedding table: {table.embedding_dim} numbers."
    return lookup_stage("embeddings", table(ids), "embeddings = table[id]", sentence, ids,
                        rule="rows by id", constants={"table": table.weight.detach()})  # fmt: skip


def _gpt_input(model: GPT, ids: Tensor) -> list[Stage]:
    """Return the stages from ids to a GPT's first block."""
    stages = [_ids(ids), _embeddings(model.tokens, ids)]
    if model.convolution is not None:
        stages += _convolved(stages[-1], model.convolution)
    kind = model.config.positions
    if kind != "rotary":
        x = stages[-1].numbers()
        positions = position_stage(model.positions, len(ids))
        if kind == "sinusoidal":
            positions = sinusoid_stage(model.positions[: len(ids)].to(x.dtype), "tokens")
        stages += [positions, sum_stage("input", [stages[-1], positions], POSITION_SUM, "input")]
    return stages


def _convolved(embeddings: Stage, convolution: ShortConvolution) -> list[Stage]:
    """Return the stages of a short convolution: a weighted sum of earlier tokens' vectors."""
    weights = [weight.detach() for weight in convolution.weights]
    x, reach = embeddings.numbers(), convolution.reach

    def number_formula(head: int, row: int, column: int) -> Formula:
        chosen = weights[:row]  # as many tokens precede this one
        numbers: list[float] = []
        for back, weight in enumerate(chosen, 1):
            numbers += float(x[row - back, column]), float(weight[column])
        text = " + ".join(["{} × {}"] * len(chosen)) or "no token before"
        return Formula(text, tuple(numbers))

    vectors = "vector of the token" if reach == 1 else f"vectors of the {reach} tokens"
    context = stored(
        "before", convolution.sum_of_previous(x[None])[0] + 0.0,  # turns −0 into 0
        f"before = Σ weights[i] · embeddings[{'i tokens' if reach > 1 else 'a token'} back]",
        f"A short convolution: {'the sum of ' * (reach > 1)}the {vectors} before, each number "
        "multiplied by a weight of the model.", "tokens", number_formula=number_formula,
        rule="convolution", constants={"weights": torch.stack(weights)}, origin=lambda: embeddings,
    )  # fmt: skip
    sentence = "The token's vector plus the result of the short convolution."
    return [context, sum_stage("joint", [embeddings, context], sentence)]


def _bert_input(model: Bert, ids: Tensor, segments: Tensor) -> list[Stage]:
    """Return the stages from ids to a BERT's first block."""
    sides = lookup_stage(
        "segments", model.segments(segments), "segments = table[0 or 1]",
        "A vector for the text to which the token belongs: row 0 of the table for the first text "
        "of a pair, row 1 for the second.", segments,
    )  # fmt: skip
    parts = [_embeddings(model.tokens, ids), sides, position_stage(model.positions, len(ids))]
    total = sum_stage("sum", parts, "The sum of the three vectors of each token.")
    sentence = "Each token's vector, normalised: the input of the first block."
    normed = norm_stage("input", total, model.norm, sentence, kind="input")
    return [_ids(ids), *parts, total, normed]


def _seq2seq_input(model: Seq2Seq, ids: Tensor, rows: str) -> list[Stage]:
    """Return the stages from ids to the first block of the encoder or the decoder."""
    table = model.source_tokens if rows == "memory" else model.target_tokens
    width = model.config.width
    root, x = math.sqrt(width), table(ids)
    embeddings = stored(
        "embeddings", root * x, f"embeddings = √{width} × table[id]",
        f"Each token's row of the embedding table: {width} numbers, multiplied by √{width}.",
        rows, kind="embeddings",
        number_formula=lambda _, row, column: Formula("{} × {}", (root, float(x[row, column]))),
    )  # fmt: skip
    positions = sinusoid_stage(model.positions[: len(ids)].to(x.dtype), rows)
    total = sum_stage("input", [embeddings, positions], POSITION_SUM, "input")
    return [_ids(ids, rows), embeddings, positions, total]
