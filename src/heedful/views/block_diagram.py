"""One block as a diagram with its attention opened, as figure 2 of *Attention is all you need*."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from torch import nn

from heedful.models.description import Shape, describe
from heedful.pictures.diagram import Arrow, Box, Diagram, Label, draw
from heedful.views.column import GAP, LINE, SHORT, TALL, Column, written
from heedful.views.model_diagram import ACTIVATIONS, done_to_keys, norm_name

BROAD, THIRD = 4.5, 1.34  # inches: a box over queries, keys and values, and one of these
PLACES = (-1.58, 0.0, 1.58)  # of query, key and value, from the middle


def draw_block(model: nn.Module) -> Figure:
    """One block of a GPT, of a BERT, or of an encoder, with every step of its attention.

    Raises:
        ArgumentError: another model.

    >>> from heedful.models import GPT, GPTConfig
    >>> figure = draw_block(GPT(GPTConfig(vocabulary=11, width=12, heads=3, layers=2)))
    >>> "scores = query · keyᵀ / √4" in [text.get_text() for text in figure.axes[0].texts]
    True
    """
    told = describe(model)
    of_pair = told.kind == "encoder–decoder"
    owner: Any = model
    config, block = owner.config, (owner.encoder if of_pair else owner.blocks)[0]
    state: Shape = ("B", "M" if of_pair else "N", config.width)
    diagram = Diagram()
    column = Column(diagram, 0, 0)
    column.words("a vector for each token")
    is_pre = told.norm_order == "pre"
    for name, norm in (("attend", block.attend_norm), ("feed", block.feed_norm)):
        start = column.branch()
        if is_pre:
            column.box(norm_name(norm), (), "sand", state, width=BROAD)
        if name == "attend":
            _attend(column, block.attend, config, state, is_causal=told.kind == "GPT")
        else:
            _feed(column, block.feed, config, state)
        column.add(start, state, BROAD)
        if not is_pre:
            column.box(norm_name(norm), (), "sand", width=BROAD)
    column.step(state)
    column.words("to the next block")
    number = sum(parameter.numel() for parameter in block.parameters())
    under = f"{told.norm_order}-norm · {number:,} parameters · B texts, {state[1]} tokens"
    return draw(diagram, f"One block of the {'encoder' if of_pair else told.kind}", under)


def _attend(column: Column, attend: Any, config: Any, state: Shape, *, is_causal: bool) -> None:
    """From vectors to queries, keys and values, to weights, and back to vectors."""
    _, N, _ = state
    H, d = attend.heads, attend.head_width
    _project(column, attend, config, state)
    tops, diagram = column.top, column.diagram
    for x, heads in zip(PLACES, (H, attend.kv_heads, attend.kv_heads), strict=True):
        diagram.labels.append(Label(x + 0.09, tops + GAP / 2 - 0.02, written(("B", heads, N, d))))
    for x in PLACES[:2]:
        diagram.arrows.append(Arrow(((x, tops), (x, tops + GAP))))
    inner = Column(diagram, (PLACES[0] + PLACES[1]) / 2, tops + GAP)
    wide = PLACES[1] - PLACES[0] + THIRD
    scores: Shape = ("B", H, N, N)
    inner.box(f"scores = query · keyᵀ / √{d}", (), "teal", gap=0, width=wide)
    if is_causal:
        window = getattr(config, "window", None)
        lines = [f"or {window} or more places before"] if window else []
        inner.box("mask: −∞ where a token is later", lines, "teal", scores, width=wide)
    inner.box("weights = softmax of each row", (), "teal", scores, width=wide)
    inner.step(scores)
    diagram.arrows.append(Arrow(((PLACES[2], tops), (PLACES[2], inner.top))))
    column.top = inner.top
    column.box("context = weights · value", (), "teal", gap=0, width=BROAD)
    column.box("heads side by side", (), "teal", ("B", H, N, d), width=BROAD)
    lines = [f"{H * d} → {config.width}"]
    column.box("Output", lines, "rose", ("B", N, H * d), width=BROAD)


def _project(column: Column, attend: Any, config: Any, state: Shape) -> None:
    """An arrow that becomes three, to query, key and value beside each other."""
    changed = done_to_keys(attend, config)
    column.step(state, head=False)
    fork, bottom = column.top, column.top + SHORT
    height = TALL + LINE * (2 if changed else 1)
    groups = (attend.heads, attend.kv_heads, attend.kv_heads)
    for x, name, heads in zip(PLACES, ("Query", "Key", "Value"), groups, strict=True):
        lines = [f"{config.width} → {heads} × {attend.head_width}"]
        lines += [", ".join(changed)] if changed and name != "Value" else []
        column.diagram.boxes.append(
            Box(x, bottom + height / 2, THIRD, height, name, tuple(lines), "rose")
        )
        way = ((0.0, fork), (x, fork), (x, bottom)) if x else ((0.0, fork), (0.0, bottom))
        column.diagram.arrows.append(Arrow(way))
    column.top = bottom + height


def _feed(column: Column, feed: Any, config: Any, state: Shape) -> None:
    """The feed-forward layer, its two products and what is between them."""
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
