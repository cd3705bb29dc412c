"""`recording.verify` with the inputs of the first pass, and with other inputs."""

import pickle

import pytest
import torch
from shown_maps import near
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError, RunError

B, H, D, E = 3, 2, 4, 8


class Attend(nn.Module):
    """Attention of x (B, N, E) by a kernel with heads before texts, or after them."""

    def __init__(self, heads_first):
        super().__init__()
        self.q, self.k, self.heads_first = nn.Linear(E, E), nn.Linear(E, E), heads_first

    def heads(self, x):
        return [side(x).unflatten(-1, (H, D)).transpose(1, 2) for side in (self.q, self.k)]

    def forward(self, x):
        query, key = self.heads(x)
        if self.heads_first:
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        return scaled_dot_product_attention(query, key, key)

    def maps(self, x):
        query, key = (side.double() for side in self.heads(x))
        return (query @ key.mT * D**-0.5).softmax(-1).float()


def recorded(model, *passes, **options):
    with torch.no_grad(), heedful.record(model, **options) as recording:
        for x in passes:
            model(x)
    return recording


@pytest.mark.parametrize("heads", [None, [1]])
@pytest.mark.parametrize(
    "other",
    [
        lambda x: torch.cat([x, x], dim=1),
        lambda x: x[:2],
        lambda x: x.flip(0),
        lambda x: x.flip(1),
        torch.randn_like,
    ],
    ids=["longer", "fewer texts", "texts in another order", "tokens in another order", "others"],
)
def test_other_inputs_than_those_recorded_change_nothing(other, heads):
    model, x = Attend(heads_first=False), torch.randn(B, 5, E)
    recording = recorded(model, x, other(x), heads=heads)
    with pytest.raises(ArgumentError, match="has other queries and keys than were recorded"):
        recording.verify(model, other(x))
    for text, [call, *_] in enumerate(recording.sequences):
        assert call.layout == "usual"
        near(call.weights(), model.maps(x)[text, heads or [0, 1]])
    assert recording.verify(model, x)["verified"] == 1


def test_a_usual_order_that_was_wrong_is_guessed_in_the_passes_that_were_not_probed():
    model, passes = Attend(heads_first=True), [torch.randn(H, 5, E), torch.randn(H, 6, E)]
    recording = recorded(model, *passes)
    assert recording.verify(model, passes[0]) == {"verified": 1, "guessed": 1}
    for text, map_ in enumerate(model.maps(passes[0])):
        near(recording.sequences[text][0].weights(), map_)
    assert "its axes are in another order" in next(c for c in recording if c.pass_index == 1).why


def test_axes_that_contradict_the_inputs_are_guessed():
    x = torch.randn(B, 5, E)
    wrong = recorded(Attend(heads_first=False), x, axes={"Attend": "h b n d"})
    assert wrong[0].layout == "guessed"
    assert f"{H} texts, but the inputs have {B}" in wrong[0].why
    right = recorded(Attend(heads_first=True), x, axes={"Attend": "h b n d"})
    assert right[0].layout == "told"


def test_an_input_without_a_batch_axis_is_verified_or_stays_usual():
    class Single(Attend):
        def forward(self, x):
            return super().forward(x[None])

    model, x = Single(heads_first=False), torch.randn(5, E)
    recording = recorded(model, x)
    assert recording.verify(model, x) == {"verified": 1}
    near(recording[0].weights(), model.maps(x[None])[0])


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("kind", ["attention", "encoder layer"])
def test_each_entry_of_a_list_of_texts_is_a_text_without_padding(kind, trains):
    """Only the layer is passed the padding mask."""

    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(E, H, batch_first=True)
            self.layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True)

        def forward(self, texts):
            x = nn.utils.rnn.pad_sequence(texts, batch_first=True)
            lengths = torch.tensor([len(text) for text in texts])
            hidden = torch.arange(x.shape[1]) >= lengths[:, None]
            if kind == "attention":
                return self.attend(x, x, x, key_padding_mask=hidden)[0]
            return self.layer(x, src_key_padding_mask=hidden)

    recording = recorded(Padded().train(trains), [torch.randn(5, E), torch.randn(7, E)])
    shapes = [[call.shape for call in text] for text in recording.sequences]
    assert shapes == [[(H, 5, 5)], [(H, 7, 7)]]
    assert (recording[0].proof, recording[0].layout) == ("proved", "told")


def test_texts_of_a_dictionary_are_counted():
    class Reads(Attend):
        def forward(self, batch):
            return super().forward(batch["x"])

    model, x = Reads(heads_first=False), torch.randn(B, 5, E)
    recording = recorded(model, {"x": x})
    assert recording[0].layout == "usual"
    for [call], map_ in zip(recording.sequences, model.maps(x), strict=True):
        near(call.weights(), map_)


def test_a_recording_is_saved_and_not_pickled():
    with pytest.raises(RunError, match="save"):
        pickle.dumps(recorded(Attend(heads_first=False), torch.randn(B, 5, E)))
