"""Figures of recordings: layers, heads, masks, pooling, labels and errors."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.ops.masks import Causal
from heedful.pictures import head_grid
from heedful.recording.figure import scores_of


class Attend(nn.Module):
    def __init__(self, mask=None):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        return scaled_dot_product_attention(x, x, x, attn_mask=self.mask)


class Model(nn.Module):
    """Three layers of attention with a common mask."""

    def __init__(self, mask=None):
        super().__init__()
        self.layers = nn.ModuleList(Attend(mask) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def recorded(N, mask=None, passes=1, **options):
    model = Model(mask)
    with heedful.record(model, **options) as recording:
        for _ in range(passes):
            model(2 * torch.randn(1, 4, N, 8))
    return recording


@pytest.fixture
def drawn(monkeypatch):
    """The blocks and the other arguments of each call of `draw`, which draws nothing."""
    drawings = []
    monkeypatch.setattr(head_grid, "draw", lambda blocks, **style: drawings.append((blocks, style)))
    return drawings


def test_the_figure_has_the_selected_layers_and_heads(drawn):
    recording = recorded(7)
    recording.plot()
    recording.plot(layers=[2, 0], heads=range(1, 3))
    recording[1].plot(heads=3, title="one")
    (([full], _), ([selected], _), ([single], style)) = drawn
    assert [line.name for line in full.lines] == ["layer 0", "layer 1", "layer 2"]
    for call, line in zip(recording, full.lines, strict=True):
        np.testing.assert_array_equal(np.ma.stack(line.maps), call.weights())
    assert [line.name for line in selected.lines] == ["layer 0", "layer 2"]
    assert selected.heads == [1, 2]
    np.testing.assert_array_equal(selected.lines[1].maps[1], recording[2].weights(2))
    np.testing.assert_array_equal(single.lines[0].maps[0], recording[1].weights(3))
    assert style["title"] == "one"


def test_a_long_map_is_pooled_without_building_it(drawn, monkeypatch):
    recording = recorded(900, Causal().crop((900, 900)))
    call = recording[1]
    expected = call.weights(2).numpy()
    monkeypatch.setattr(type(call), "weights", lambda *_: pytest.fail("the full map"))
    recording.plot(layers=1, heads=2)
    recording.plot(layers=1, heads=2, reduce="mean", size=3)
    for (blocks, style), pool in zip(drawn, (np.max, np.mean), strict=True):
        values = blocks[0].lines[0].maps[0]
        size = -(-900 // len(values))
        assert size > 1
        for i, j in ((0, 0), (5, 2), (9, 9)):
            part = expected[i * size : (i + 1) * size, j * size : (j + 1) * size]
            assert values[i, j] == pytest.approx(pool(part), abs=1e-6)
        assert np.ma.getmaskarray(values)[0, -1]
        assert blocks[0].keys[:2] == ["0", str(size)]
        word = {np.max: "largest", np.mean: "mean"}[pool]
        assert any(f"{word} of {size} × {size} weights" in note for note in style["notes"])


def test_a_generation_is_drawn_as_one(drawn):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.Module()
            self.keys = None

        def forward(self, x, causal):
            self.keys = x if self.keys is None else torch.cat([self.keys, x], 2)
            return scaled_dot_product_attention(x, self.keys, self.keys, is_causal=causal)

    model = nn.ModuleDict({"layers": nn.ModuleList([Cached()])})["layers"][0]
    with heedful.record(model) as recording:
        model(torch.randn(1, 2, 4, 8), True)
        for _ in range(3):
            model(torch.randn(1, 2, 1, 8), False)
    recording.plot()
    [([block], style)] = drawn
    assert len(block.lines) == 1
    assert block.lines[0].maps[0].shape == (7, 7)
    np.testing.assert_array_equal(np.ma.getmaskarray(block.lines[0].maps[0]), np.tri(7) == 0)
    assert any("4 passes" in note for note in style["notes"])


def test_axes_have_token_names_and_borders_between_texts(drawn):
    recording = recorded(6)
    recording.tokens = [["[CLS]", "it", "[SEP]", "it", "is", "[SEP]"]]
    recording.plot()
    [block] = drawn[0][0]
    assert block.queries == block.keys == ["[CLS]", "it₁", "[SEP]₂", "it₃", "is", "[SEP]₅"]
    assert block.borders == ([3], [3])


def test_a_refuted_call_has_an_empty_line_and_a_note(drawn):
    recording = recorded(5)
    recording[1].refutations[0] = "row 3 is not the model's"
    recording.plot()
    [([block], style)] = drawn
    assert [line.maps[0] is None for line in block.lines] == [False, True, False]
    assert any("layer 1 is refuted" in note and "row 3" in note for note in style["notes"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, "layer 3; expected layers from 0 to 2"),
        ({"heads": [0, 4]}, "head 4; expected heads from 0 to 3"),
        ({"layers": "0"}, "a list or a range"),
        ({"heads": []}, "a list or a range"),
        ({"heads": [0.5]}, "a list or a range"),
        ({"part": "cross"}, "no part: these calls have none"),
        ({"part": "middle"}, "encoder, decoder or cross"),
        ({"pass_index": 1}, "pass 1; expected pass 0"),
    ],
)
def test_an_unknown_selection_is_refused_in_one_line(options, message):
    recording = recorded(4)
    with pytest.raises(ArgumentError, match=message) as raised:
        recording.plot(**options)
    assert "\n" not in str(raised.value)


def test_a_text_of_padding_is_refused_in_one_line(tmp_path):
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    model = transformers.BertModel(config).eval()
    keep = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 0]])
    with torch.no_grad(), heedful.record(model) as recording:
        model(input_ids=torch.arange(8).view(2, 4), attention_mask=keep)
    assert recording[0].shape == (2, 0, 0)
    with pytest.raises(RunError, match="a text without a token") as raised:
        recording.plot()
    assert "\n" not in str(raised.value)
    recording.sequences[1].plot()


def test_scores_before_and_after_the_mask():
    call = recorded(6, Causal().crop((6, 6)))[0]
    scaled, masked = scores_of(call, 2)
    query, key = call.causes.query[2].double(), call.causes.key[2].double()
    expected = query @ key.T * call.causes.scale
    torch.testing.assert_close(scaled.double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(masked.isinf(), torch.ones(6, 6).triu(1).bool())
    torch.testing.assert_close(masked.softmax(-1), call.weights(2))
    with pytest.raises(ArgumentError, match="before and after"):
        scores_of(recorded(6)[0], 0)
    with pytest.raises(ArgumentError, match="at most 512"):
        scores_of(recorded(600, Causal().crop((600, 600)))[0], 0)


def test_a_figure_from_end_to_end():
    figure = recorded(5, Causal().crop((5, 5))).plot(layers=0)
    maps = [ax for ax in figure.axes if ax.get_label().startswith("layer")]
    assert [ax.get_label() for ax in maps] == [f"layer 0, head {head}" for head in range(4)]
