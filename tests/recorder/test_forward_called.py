"""`model.forward(ids)` instead of `model(ids)`: no hook of the model runs."""

import pytest
import torch
import torch.nn.functional as F
from shown_maps import Given
from torch import nn

import heedful
from heedful.errors import RunError
from heedful.models import GPT, GPTConfig

IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 7, 8, 0, 5]])


class Around(nn.Module):
    """Calls the `forward` of its model, as some packages do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model.forward(ids)


@pytest.mark.parametrize("around", [False, True])
def test_modules_inside_have_their_names_and_weights(around):
    gpt = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    model = Around(gpt) if around else gpt
    with torch.no_grad(), heedful.record(model) as called:
        (model.model if around else model)(IDS)
    with torch.no_grad(), heedful.record(model) as recording:
        (model if around else model.forward)(IDS)
    assert recording.missed == {}
    for text, other in zip(recording.sequences, called.sequences, strict=True):
        assert [call.name for call in text] == [call.name for call in other]
        for call, same in zip(text, other, strict=True):
            assert torch.equal(call.weights(), same.weights())


def test_attention_in_the_directly_called_forward_is_not_recorded():
    model = Given(lambda x: F.scaled_dot_product_attention(x, x, x))
    with heedful.record(model) as recording:
        model.forward(torch.randn(2, 3, 5, 4))
    with pytest.raises(RunError, match="nothing was recorded"):
        recording.summary()
