"""Diagrams of models: labels do not overlap, and show the model's numbers."""

import itertools

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.models.parameters import on_meta_device
from heedful.views.model_diagram import draw_block, draw_model

LARGE = {"vocabulary": 128_256, "width": 16_384, "heads": 128, "layers": 2}
MODELS = {
    "gpt": lambda: GPT(GPTConfig(vocabulary=1024)),
    "large": lambda: GPT(
        GPTConfig(**LARGE, kv_heads=8, activation="swiglu", hidden=53_248, window=131_072)
    ),
    "post": lambda: GPT(
        GPTConfig(vocabulary=23, norm_order="post", norm="layer", positions="sinusoidal",
                  activation="relu", qk_norm=False, tied=False)
    ),
    "bert": lambda: Bert(BertConfig()),
    "bert, pooled": lambda: Bert(BertConfig(masked_words=False)),
    "bert, masked": lambda: Bert(BertConfig(pooler=False)),
    "pairs": lambda: Seq2Seq(Seq2SeqConfig(vocabulary=30, layers=2, decoder_layers=3)),
    "pairs, post": lambda: Seq2Seq(Seq2SeqConfig(**LARGE, norm_order="post")),
}  # fmt: skip


def texts(figure):
    return [text for text in figure.axes[0].texts if text.get_text()]


def labels(figure):
    return [text.get_text() for text in texts(figure)]


@pytest.mark.parametrize("draw", [draw_model, draw_block])
@pytest.mark.parametrize("name", MODELS)
def test_labels_fit_and_do_not_overlap(name, draw):
    """No label covers another, or leaves the figure or its box."""
    figure = draw(on_meta_device(MODELS[name]))
    figure.draw_without_rendering()
    written = [(text.get_window_extent(), text.get_text()) for text in texts(figure)]
    for (a, first), (b, second) in itertools.combinations(written, 2):
        beside = a.x1 <= b.x0 or b.x1 <= a.x0
        assert beside or a.y1 <= b.y0 + 0.5 or b.y1 <= a.y0 + 0.5, f"{first!r} over {second!r}"
    boxes = [patch.get_window_extent() for patch in figure.axes[0].patches
             if type(patch).__name__ == "FancyBboxPatch"]  # fmt: skip
    for word, words in written:
        middle = ((word.x0 + word.x1) / 2, (word.y0 + word.y1) / 2)
        within = [figure.bbox, *(box for box in boxes if box.contains(*middle))]
        nearest = min(within, key=lambda box: box.width * box.height)
        assert nearest.x0 <= word.x0 < word.x1 <= nearest.x1, words
        assert nearest.y0 <= word.y0 < word.y1 <= nearest.y1, words


GROUPED = GPTConfig(vocabulary=1000, width=24, heads=4, layers=3, kv_heads=2)
WORDS = {
    "gpt": (lambda: draw_model(GPT(GROUPED)), ["× 3", "[B, N, 1000]", "24 → 96 → 24, ReLU²",
            "4 heads of 6 · scores [B, 4, N, N]", "keys and values: 2 heads"]),
    "pairs": (lambda: draw_model(MODELS["pairs"]()), ["× 2", "× 3", "Cross-attention",
              "4 heads of 32 · scores [B, 4, N, M]", "memory [B, M, 128]: keys and values"]),
    "bert": (lambda: draw_block(on_meta_device(MODELS["bert, masked"])), []),
    "block": (lambda: draw_block(GPT(GPTConfig(vocabulary=9, width=24, heads=3, window=5))),
              ["scores = query · keyᵀ / √8", "mask: −∞ where the key is later", "[B, 3, N, 8]",
               "24 → 3 × 8", "normalised, rotated"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_a_diagram_has_the_numbers_of_its_model(name):
    draw, expected = WORDS[name]
    words = labels(draw())
    assert set(expected) <= set(words)
    assert any("mask" in line.casefold() for line in words) == (name != "bert")


def test_norms_stand_where_the_model_has_them():
    """Pre-norm: below attention. Post-norm: above the sum."""
    for order in ("pre", "post"):
        figure = draw_model(GPT(GPTConfig(vocabulary=9, norm_order=order)))
        height = {text.get_text(): text.get_position()[1] for text in reversed(texts(figure))}
        lowest, attention = height["RMSNorm"], height["Masked multi-head attention"]
        assert (lowest < attention) == (order == "pre")
        assert ("the final norm" in height) == (order == "pre")


def test_another_module_is_not_drawn():
    for draw in (draw_model, draw_block):
        with pytest.raises(ArgumentError, match="a Linear; expected a GPT"):
            draw(torch.nn.Linear(2, 3))
