"""Diagrams of models and blocks, drawn upwards as in figure 1 of *Attention is all you need*.

All sizes and names in the labels are read from the model.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from torch import nn

from heedful.layers import CrossAttention, MultiHeadAttention, RMSNorm
from heedful.models.description import IDS, Shape, describe
from heedful.pictures.diagram import Arrow, Box, Diagram, Label, draw
from heedful.views.diagram_column import GAP, LINE, SHORT, TALL, Column
from heedful.views.model_summary import shape_text

ACTIVATIONS = {"relu2": "ReLU²", "relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (tanh)",
              "swiglu": "SwiGLU", "geglu": "GEGLU", "reglu": "ReGLU"}  # fmt: skip
POSITIONS = {"sinusoidal": "sines and cosines", "learned": "learned"}
APART = 4.55  # inches between encoder and decoder
BROAD, THIRD = 4.5, 1.34  # inches: width of a box above three projections, and of one projection
OFFSETS = (-1.58, 0.0, 1.58)  # inches from the middle: query, key, value


def draw_model(model: nn.Module) -> Figure:
    """Draw a GPT, a BERT or an encoder–decoder with its shapes and residual lines.

    Raises:
        ArgumentError: the model is none of these.

    >>> from heedful.models import GPT, GPTConfig
    >>> figure = draw_model(GPT(GPTConfig(vocabulary=11, width=12, heads=3, layers=2)))
    >>> [text.get_text() for text in figure.axes[0].texts][:2]
    ['× 2', 'pre-norm']
    """
    description = describe(model)
    diagram, kind = Diagram(), description.kind
    {"GPT": _gpt, "BERT": _bert}.get(kind, _seq2seq)(diagram, model)
    tokens = "M source and N target tokens" if kind == "encoder–decoder" else "N tokens"
    subtitle = f"{description.parameters:,} parameters · B texts, {tokens}"
    return draw(diagram, kind[0].upper() + kind[1:], subtitle)


def _gpt(diagram: Diagram, model: Any) -> None:
    config, column = model.config, Column(diagram, 0, 0)
    state: Shape = ("B", "N", config.width)
    column.words("token ids")
    _embedding(column, "Token embedding", config, IDS)
    if config.convolution:
        reach = config.convolution
        line = f"adds the {reach} vectors before" if reach > 1 else "adds the vector before"
        column.box("Short convolution", [line], "rose", state)
    if config.positions in POSITIONS:
        y = column.sum(state, 0.46)
        column.beside(y, "Positions", [POSITIONS[config.positions]], "rose", -1)
    with column.frame(f"× {config.layers}", [f"{config.norm_order}-norm", "blocks"], 1):
        _block(column, model.blocks[0], config, masked=True)
    if config.norm_order == "pre":
        column.box(norm_name(model.norm), ["the final norm"], "sand", state)
    _output(column, config, state, "next token")


def _bert(diagram: Diagram, model: Any) -> None:
    config, column = model.config, Column(diagram, 0, 0)
    state: Shape = ("B", "N", config.width)
    column.words("token ids")
    _embedding(column, "Token embedding", config, IDS)
    y = column.sum(state, 0.46)
    column.beside(y, "Positions", ["learned"], "rose", -1)
    column.beside(y, "Segments", ["first or second text"], "rose", 1)
    column.box("LayerNorm", (), "sand", gap=0.3)
    with column.frame(f"× {config.layers}", ["post-norm", "blocks"], 1):
        _block(column, model.blocks[0], config, masked=False)
    start = column.top
    if model.head is not None:
        lines = [f"{config.width} → {config.width}, norm", "→ token table, shared"]
        column.box("Masked-word head", lines, "violet", state)
        column.step(("B", "N", config.vocabulary))
        column.words("logits at each position")
    else:
        column.step(state)
        column.words("hidden states")
    if model.pooler is not None:
        _pooler(diagram, model, start)


def _pooler(diagram: Diagram, model: Any, start: float) -> None:
    """Draw the pooler, which reads the first token's vector, beside the head."""
    width, turn = model.config.width, start + 0.13
    column = Column(diagram, -2.75, turn, side=1)
    diagram.arrows.append(Arrow(((0, turn), (column.x, turn), (column.x, turn + 0.3))))
    column.top += 0.3
    column.box("Pooler", ["of the first token, tanh"], "violet", gap=0, width=1.9)
    column.step(("B", width))
    column.words("one vector")


def _seq2seq(diagram: Diagram, model: Any) -> None:
    config = model.config
    source: Shape = ("B", "M", config.width)
    target: Shape = ("B", "N", config.width)
    encoder, decoder = Column(diagram, 0, 0), Column(diagram, APART, 0, side=1)
    order = ["blocks,", f"{config.norm_order}-norm"]
    for column, words, shape in ((encoder, "source", source), (decoder, "target so far", target)):
        column.words(words)
        _embedding(column, "Token embedding", config, shape[:2], scaled=True)
        y = column.sum(shape, 0.46)
        column.beside(y, "Positions", [POSITIONS["sinusoidal"]], "rose", column.side)
    with encoder.frame(f"× {len(model.encoder)}", ["encoder", *order], -1):
        _block(encoder, model.encoder[0], config, masked=False, tokens="M")
    if config.norm_order == "pre":
        encoder.box(norm_name(model.encoder_norm), ["the encoder's final norm"], "sand", source)
    with decoder.frame(f"× {len(model.decoder)}", ["decoder", *order], 1):
        cross = _block(decoder, model.decoder[0], config, masked=True)
    if config.norm_order == "pre":
        decoder.box(norm_name(model.decoder_norm), ["the decoder's final norm"], "sand", target)
    _output(decoder, config, target, "next target token")
    _memory(diagram, encoder, cross, source)


def _memory(diagram: Diagram, encoder: Column, cross: Box, shape: Shape) -> None:
    """Draw the line from the encoder's output to the decoder's cross-attention."""
    gutter = APART / 2
    top = encoder.top + 0.25
    points = (
        (encoder.x, encoder.top),
        (encoder.x, top),
        (gutter, top),
        (gutter, cross.y),
        (cross.x - cross.width / 2, cross.y),
    )
    diagram.arrows.append(Arrow(points))
    words = f"memory {shape_text(shape)}: keys and values"
    diagram.labels.append(Label(encoder.x + 0.12, top + 0.12, words, "right"))


def _embedding(column: Column, name: str, config: Any, ids: Shape, *, scaled: bool = False) -> None:
    lines = [f"{config.vocabulary} × {config.width}" + (", times √width" if scaled else "")]
    column.box(name, lines, "rose", ids)


def _block(column: Column, block: Any, config: Any, *, masked: bool, tokens: str = "N") -> Box:
    """Draw a block; return the box of its second layer (cross-attention in a decoder)."""
    state: Shape = ("B", tokens, config.width)
    name = "Masked multi-head attention" if masked else "Multi-head attention"
    parts = [(name, _attention(block.attend, config, tokens, tokens), "teal", "attend_norm")]
    if hasattr(block, "cross"):
        lines = _attention(block.cross, config, tokens, "M")
        parts.append(("Cross-attention", lines, "teal", "cross_norm"))
    parts.append(("Feed-forward", [_feed(block.feed, config)], "blue", "feed_norm"))
    order, boxes = getattr(config, "norm_order", "post"), []
    for name, lines, tint, norm in parts:
        with column.residual(norm_name(getattr(block, norm)), order, state):
            boxes.append(column.box(name, lines, tint, None if order == "pre" else state))
    return boxes[1]


def _attention(
    attend: MultiHeadAttention | CrossAttention, config: Any, tokens: str, keys: str
) -> list[str]:
    H, d = attend.heads, attend.head_width
    heads = f"{H} heads of {d}" if H > 1 else f"1 head of {d}"
    lines = [f"{heads} · scores [B, {H}, {tokens}, {keys}]"]
    groups = getattr(attend, "kv_heads", H)
    if groups != H:
        lines.append(f"keys and values: {groups} head" + ("s" if groups > 1 else ""))
    if isinstance(attend, MultiHeadAttention) and (changes := key_changes(attend, config)):
        lines.append("queries and keys " + " and ".join(changes))
    if getattr(config, "window", None):
        lines.append(f"window of {config.window} tokens")
    return lines


def key_changes(attend: MultiHeadAttention, config: Any) -> list[str]:
    """Return how queries and keys are changed before their product, such as "rotated"."""
    changes = [] if isinstance(attend.query_norm, nn.Identity) else ["normalised"]
    return [*changes, "rotated"] if getattr(config, "positions", "") == "rotary" else changes


def _feed(feed: Any, config: Any) -> str:
    last: nn.Linear = feed.output
    return (
        f"{last.out_features} → {last.in_features} → {last.out_features}, "
        + ACTIVATIONS[config.activation]
    )


def norm_name(norm: nn.Module) -> str:
    """Return the name of a norm's type."""
    return "RMSNorm" if isinstance(norm, RMSNorm) else "LayerNorm"


def _output(column: Column, config: Any, state: Shape, token: str) -> None:
    """Draw the output layer and the softmax."""
    lines = [f"{config.width} → {config.vocabulary}" + (", the token table" if config.tied else "")]
    logits: Shape = (*state[:2], config.vocabulary)
    column.box("Output layer", lines, "violet", state)
    column.box("Softmax", (), "plain", logits)
    column.step()
    column.words(f"probabilities of the {token}")


def draw_block(model: nn.Module) -> Figure:
    """Draw the first block of a GPT, a BERT or an encoder–decoder's encoder, with every step.

    Raises:
        ArgumentError: the model is not a GPT, a BERT or an encoder–decoder.

    >>> from heedful.models import GPT, GPTConfig
    >>> figure = draw_block(GPT(GPTConfig(vocabulary=11, width=12, heads=3, layers=2)))
    >>> "scores = query · keyᵀ / √4" in [text.get_text() for text in figure.axes[0].texts]
    True
    """
    description = describe(model)
    order, is_pair = description.norm_order, description.kind == "encoder–decoder"
    parts: Any = model
    config, block = parts.config, (parts.encoder if is_pair else parts.blocks)[0]
    state: Shape = ("B", "M" if is_pair else "N", config.width)
    diagram = Diagram()
    column = Column(diagram, 0, 0)
    column.words("a vector for each token")
    with column.residual(norm_name(block.attend_norm), order, state, BROAD):
        _attend(column, block.attend, config, state, is_causal=description.kind == "GPT")
    with column.residual(norm_name(block.feed_norm), order, state, BROAD):
        _products(column, block.feed, config, state)
    column.step(state)
    column.words("to the next block")
    parameters = sum(parameter.numel() for parameter in block.parameters())
    subtitle = f"{order}-norm · {parameters:,} parameters · B texts, {state[1]} tokens"
    return draw(diagram, f"One block of the {'encoder' if is_pair else description.kind}", subtitle)


def _attend(column: Column, attend: Any, config: Any, state: Shape, *, is_causal: bool) -> None:
    """Draw attention: projections, scores, weights, context and output."""
    _, N, _ = state
    H, d = attend.heads, attend.head_width
    _project(column, attend, config, state)
    tops, diagram = column.top, column.diagram
    for x, heads in zip(OFFSETS, (H, attend.kv_heads, attend.kv_heads), strict=True):
        shape = shape_text(("B", heads, N, d))
        diagram.labels.append(Label(x + 0.09, tops + GAP / 2 - 0.02, shape))
    for x in OFFSETS[:2]:
        diagram.arrows.append(Arrow(((x, tops), (x, tops + GAP))))
    inner = Column(diagram, (OFFSETS[0] + OFFSETS[1]) / 2, tops + GAP)
    wide = OFFSETS[1] - OFFSETS[0] + THIRD
    scores: Shape = ("B", H, N, N)
    inner.box(f"scores = query · keyᵀ / √{d}", (), "teal", gap=0, width=wide)
    if is_causal:
        window = getattr(config, "window", None)
        lines = [f"or {window} or more positions before"] if window else []
        inner.box("mask: −∞ where the key is later", lines, "teal", scores, width=wide)
    inner.box("weights = softmax of each row", (), "teal", scores, width=wide)
    inner.step(scores)
    diagram.arrows.append(Arrow(((OFFSETS[2], tops), (OFFSETS[2], inner.top))))
    column.top = inner.top
    column.box("context = weights · value", (), "teal", gap=0, width=BROAD)
    column.box("heads side by side", (), "teal", ("B", H, N, d), width=BROAD)
    lines = [f"{H * d} → {config.width}"]
    column.box("Output", lines, "rose", ("B", N, H * d), width=BROAD)


def _project(column: Column, attend: Any, config: Any, state: Shape) -> None:
    """Draw an arrow that forks to the query, key and value projections."""
    changes = key_changes(attend, config)
    column.step(state, head=False)
    fork, bottom = column.top, column.top + SHORT
    height = TALL + LINE * (2 if changes else 1)
    groups = (attend.heads, attend.kv_heads, attend.kv_heads)
    for x, name, heads in zip(OFFSETS, ("Query", "Key", "Value"), groups, strict=True):
        lines = [f"{config.width} → {heads} × {attend.head_width}"]
        lines += [", ".join(changes)] if changes and name != "Value" else []
        column.diagram.boxes.append(
            Box(x, bottom + height / 2, THIRD, height, name, tuple(lines), "rose")
        )
        path = ((0.0, fork), (x, fork), (x, bottom)) if x else ((0.0, fork), (0.0, bottom))
        column.diagram.arrows.append(Arrow(path))
    column.top = bottom + height


def _products(column: Column, feed: Any, config: Any, state: Shape) -> None:
    """Draw the feed-forward layer: linear, activation, linear."""
    hidden: Shape = (*state[:2], feed.output.in_features)
    entered: Shape = (*state[:2], feed.enter.out_features)
    lines = [f"{feed.enter.in_features} → {feed.enter.out_features}"]
    column.box("Linear", lines, "blue", state, width=BROAD)
    name = ACTIVATIONS[config.activation]
    if entered != hidden:
        name += ": one half gates the other"
    column.box(name, (), "blue", entered, width=BROAD)
    lines = [f"{feed.output.in_features} → {feed.output.out_features}"]
    column.box("Linear", lines, "blue", hidden, width=BROAD)
