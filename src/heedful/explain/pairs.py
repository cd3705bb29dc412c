"""An encoder–decoder's own numbers: a source read, and what of its target comes next."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from heedful.explain.attending import added
from heedful.explain.block import parts_of
from heedful.explain.pieces import placed
from heedful.explain.stages import Explanation, Formula, Section, Stage, answer, check_index, held
from heedful.explain.trained import LEARNED, ORDERS, Pieces, ending, ids_stage, through
from heedful.explain.watching import watch
from heedful.explain.words import Names, says
from heedful.models.seq2seq import Seq2Seq


@torch.inference_mode()
def explain_seq2seq(
    model: Seq2Seq, source: Tensor, target: Tensor, *, pieces: Pieces, layer: int = 0, head: int = 0
) -> Explanation:
    """Take a source through the encoder and a target through the decoder, to its next tokens.

    Args:
        model: in evaluation mode, on any device.
        source: ids (1, M), closed by the model's end.
        target: ids (1, N) of what is written so far, opened by the model's begin.
        pieces: gives the text of each of a list of ids, begin and end among them.
        layer: the block to open, of the encoder and of the decoder, from 0.
        head: the head to look at, from 0.

    Raises:
        ArgumentError: a layer or head that the model has not, more tokens than its context.
    """
    config = model.config
    check_index("layer", layer, max(len(model.encoder), len(model.decoder)))
    check_index("head", head, config.heads)
    encoder, decoder = list(model.encoder), list(model.decoder)
    inside = [part for side in (encoder, decoder) for block in side[layer : layer + 1]
              for part in parts_of(block)]  # fmt: skip
    with watch([*encoder, *decoder, *inside, model.encoder_norm, model.decoder_norm]) as seen:
        memory = model.encode(source)
        model.decoder_states(target, memory)
    reads = _arrive(model, source[0], "memory")
    sections = [Section("The source, from text to vectors", tuple(reads), side="encoder")]
    sections += through(encoder, seen, reads[-1], layer, "encoder block", "memory", side="encoder")
    last = sections[-1].stages[-1]
    remembered = ending("memory", last, model.encoder_norm, memory[0])
    sections.append(Section("The source as the decoder sees it", (remembered,), side="encoder"))
    asks = _arrive(model, target[0], "tokens")
    title = "What is written so far, from text to vectors"
    sections.append(Section(title, tuple(asks), side="decoder"))
    sections += through(decoder, seen, asks[-1], layer, "decoder block", "tokens", remembered,
                        "decoder")  # fmt: skip
    end = [
        ending("final", sections[-1].stages[-1], model.decoder_norm, seen[model.decoder_norm].made)
    ]
    end += says(end[-1], model.head, config.tied, "as the next one")
    sections.append(Section("From the last states to the next letter", tuple(end), "words"))
    names = Names(config.vocabulary, pieces)
    return Explanation(
        title=f"an encoder–decoder: {len(encoder)} and {len(decoder)} blocks of {config.heads} "
        f"head{'s' if config.heads > 1 else ''}, width {config.width}",
        tokens=tuple(pieces(target[0].tolist())),
        memory=tuple(pieces(source[0].tolist())),
        sections=tuple(sections),
        notes=(LEARNED, ORDERS[config.norm_order == "post"]),
        heads=config.heads,
        head=head,
        layers=max(len(encoder), len(decoder)),
        layer=layer,
        vocabulary=names,
        asked="tokens after",
        answers=tuple(answer(end[-1], place, names) for place in range(target.shape[1])),
    )


def _arrive(model: Seq2Seq, ids: Tensor, rows: str) -> list[Stage]:
    """The embeddings of a source or a target, scaled, and its places."""
    table = model.source_tokens if rows == "memory" else model.target_tokens
    root = math.sqrt(model.config.width)
    x = table(ids)

    def how(head: int, row: int, column: int) -> Formula:
        return Formula("{} × {}", (root, float(x[row, column])))

    width = model.config.width
    embeddings = held(
        "embeddings", root * x, f"embeddings = √{width} × table[id]",
        f"Each token's row of the model's table, {width} numbers, times the root of the width.",
        rows, how=how, kind="embeddings",
    )  # fmt: skip
    where = model.positions[: len(ids)].to(x.dtype)
    positions = placed(where, rows)
    sentence = "The vector of the token and that of its place, added."
    total = added("input", [embeddings, positions], sentence, root * x + where, "input")
    return [ids_stage(ids, rows), embeddings, positions, total]
