"""`record(axes=…)`: the named axes are used, or refused in one line."""

import pytest
import torch
from shown_maps import WIDTH, Heads, near, recorded
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError

B, H, W, N, D = 5, 3, 2, 4, 6


class Raw(nn.Module):
    """Attention of queries in a given order, computed from x (B, W, H, N, D)."""

    def __init__(self, order, by_hand=False):
        super().__init__()
        self.order, self.by_hand = order, by_hand

    def forward(self, x):
        result = self.order(x)
        if self.by_hand:
            return (result @ result.cos().mT / D**0.5).softmax(-1) @ result.sin()
        return scaled_dot_product_attention(result, result.cos(), result.sin())


ORDERS = {
    "b w h n d": lambda x: x,
    "b h w n d": lambda x: x.transpose(1, 2),
    "h w b n d": lambda x: x.transpose(0, 2),
    "(b w) h n d": lambda x: x.flatten(0, 1),
    "(w b) h n d": lambda x: x.transpose(0, 1).flatten(0, 1),
    "h (b w) n d": lambda x: x.flatten(0, 1).transpose(0, 1),
    "(b h) w n d": lambda x: x.transpose(1, 2).flatten(0, 1),
}


def maps_of(x):
    """The maps of x (B, W, H, N, D) by definition."""
    return (x.double() @ x.double().cos().mT / D**0.5).softmax(-1).float()


def shows(call, maps):
    """Check the maps of the parts of a text."""
    assert (call.proof, call.layout, call.why) == ("proved", "told", "")
    for part, map_ in zip(call.parts, maps, strict=True):
        near(part.weights(), map_)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("windows", [W, 1])
@pytest.mark.parametrize("letters", ORDERS)
def test_windows_and_heads_are_arranged_by_the_pattern(letters, windows, by_hand):
    model, x = Raw(ORDERS[letters], by_hand), torch.randn(B, windows, H, N, D)
    before = model(x)
    with heedful.record(model, axes={"Raw": letters}) as recording:
        assert torch.equal(model(x), before)
    assert not recording.missed
    assert len(recording.sequences) == B
    for [call], maps in zip(recording.sequences, maps_of(x), strict=True):
        shows(call, maps)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("letters", "order"),
    [
        ("(h b) n d", lambda x: x.transpose(0, 1).flatten(0, 1)),
        ("(b h) n d", lambda x: x.flatten(0, 1)),
        ("h b n d", lambda x: x.transpose(0, 1)),
        ("b n h d", lambda x: x),  # the letters are in the order of the scores
    ],
)
def test_heads_and_texts_in_one_axis_are_exact(letters, order, by_hand):
    model, x = Raw(order, by_hand), torch.randn(B, H, N, D)
    recording = recorded(model, x, axes={"*": letters})
    assert len(recording.sequences) == B
    for [call], map_ in zip(recording.sequences, maps_of(x), strict=True):
        shows(call, map_[None])


def test_wrong_axes_of_the_user_are_corrected_by_verify():
    does = lambda q, k: attended(q.transpose(0, 1).flatten(0, 1), k.transpose(0, 1).flatten(0, 1))  # noqa: E731
    model, x = Heads(does), torch.randn(B, N, WIDTH)
    recording = recorded(model, x, axes={"*": "(b h) n d"})
    assert recording[0].layout == "told"
    assert recording.verify(model, x) == {"verified": 1}
    query, key = (side.double() for side in model.heads(x))
    for [call], map_ in zip(recording.sequences, (query @ key.mT).softmax(-1), strict=True):
        near(call.weights(), map_.float())


def attended(query, key):
    return (query @ key.mT).softmax(-1) @ key


def test_the_first_pattern_that_matches_a_name_is_used():
    model = nn.ModuleDict({"one": Raw(ORDERS["h (b w) n d"]), "two": Raw(ORDERS["(w b) h n d"])})
    model.forward = lambda x: [part(x) for part in model.values()]
    x = torch.randn(B, W, H, N, D)
    patterns = {"o?e": "h (b w) n d", "*": "(w b) h n d", "two": "n d"}
    recording = recorded(model, x, axes=patterns)
    assert [call.name for call in recording] == ["one", "two"]
    for sequence, maps in zip(recording.sequences, maps_of(x), strict=True):
        for call in sequence:
            shows(call, maps)


WRONG = [
    "", "b h n", "b h d", "b h n n d", "(b h n d", "b h) n d", "b h n d e!", "b h (n d)", "B h n d",
    "() n d", "b h 1 n d", "b ((h w) n) d", "b ... n d", "bh n d", 3, None, ["b", "h", "n", "d"],
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_an_invalid_notation_raises_one_line(text):
    with pytest.raises(ArgumentError) as raised, heedful.record(nn.Linear(2, 2), axes={"*": text}):
        pass
    line = str(raised.value)
    assert line.startswith(f"axes {str(text)!r}; expected each axis of the queries by its letter")
    assert "\n" not in line


@pytest.mark.parametrize("axes", ["b h n d", ["b h n d"], 3, {"b h n d"}])
def test_axes_that_are_not_a_mapping_raise_one_line(axes):
    with pytest.raises(ArgumentError) as raised, heedful.record(nn.Linear(2, 2), axes=axes):
        pass
    line = f"axes of type {type(axes).__name__}; expected names of modules and the axes"
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@pytest.mark.filterwarnings("ignore:attention of Raw")
@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("(h b) n d", "for scores (5, 3, 4, 4); expected one axis, besides d,"),
        ("(h w) b n d", "for an axis of size 5 and 5 texts"),
        ("b (h w) n d", "for an axis of size 3 and 5 texts"),
        ("h (b w) n d", "for an axis of size 3 and 5 texts"),
    ],
)
def test_a_pattern_that_does_not_fit_the_scores_is_missed(letters, words):
    model, x = Raw(lambda x: x), torch.randn(B, H, N, D)
    before = model(x)
    with heedful.record(model, axes={"*": letters}) as recording:
        assert torch.equal(model(x), before)
    assert len(recording) == 0
    assert recording.missed["Raw"].startswith(f"axes {letters!r} for")
    assert words in recording.missed["Raw"]


def test_a_pattern_without_a_matching_module_is_refused_before_the_model_runs():
    model = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)
    line = r"axes for 'Heds', which is not the name of a module; expected a name such as Heads"
    with pytest.raises(ArgumentError, match=line), heedful.record(model, axes={"Heds": "b h n d"}):
        raise AssertionError("the block ran")


def test_attention_of_channels_to_channels_is_proved():
    """As in cross-covariance attention: its queries and keys are features."""
    model, x = Heads(lambda q, k: (q.mT @ k).softmax(-1) @ k.mT), torch.randn(3, N, WIDTH)
    recording = recorded(model, x, axes={"Heads": "b h n d"})
    query, key = model.heads(x)
    for [call], map_ in zip(recording.sequences, (query.mT @ key).softmax(-1), strict=True):
        shows(call, map_[None])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when it loads its compiler
def test_names_in_a_recording_match_a_compiled_model():
    model = nn.Sequential(
        torch.compile(nn.Sequential(Heads(lambda q, k: (q @ k.mT).softmax(-1) @ k)))
    )
    x = torch.randn(1, N, WIDTH)
    recording = recorded(model, x)
    name = recording[0].name
    assert name == "0.0"
    recording = recorded(model, x, axes={name: "b h n d"})
    assert recording[0].layout == "told"
