"""What is written into a tensor, or cut from repeated ones, is not proved to be in its place."""

import pytest
import torch
from attends_to_ids import IDS, Attends, N, named
from looked import WIDTH, looked_at
from torch import nn

import heedful

B = 3


class Torchs(nn.Module):
    """nn.MultiheadAttention on texts that are changed before."""

    def __init__(self, change):
        super().__init__()
        self.change, self.widen = change, nn.Linear(WIDTH, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 1, batch_first=True)

    def forward(self, *several):
        x = self.change(*map(self.widen, several))
        return self.attend(x, x, x, need_weights=False)[0]


def _into_a_part(x, y):
    x[:, 1:].add_(y[:, 1:])
    return x


INTO = {
    "add": lambda x, y: x.mul_(0.0).add_(y.flip(0)),
    "lerp": lambda x, y: x.lerp_(y.flip(0), 1.0),
    "addcmul": lambda x, y: x.zero_().addcmul_(y.flip(0), torch.ones_like(y)),
    "a part": lambda x, y: _into_a_part(x.mul_(0.0), y.flip(0)),
    "where": lambda x, y: torch.where(torch.ones_like(x).bool(), y.flip(0), x),
}


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("way", INTO)
def test_texts_in_another_order_that_are_written_into_others_are_not_proved(way, is_inference):
    model = Torchs(INTO[way]).eval()
    mode = torch.inference_mode() if is_inference else torch.no_grad()
    with mode, heedful.record(model) as recording:
        model(torch.randn(B, N, WIDTH), torch.randn(B, N, WIDTH))
    assert recording[0].proof == "assumed"
    assert "'flip' put texts in other places" in recording[0].why


def test_a_sum_in_place_of_texts_in_their_order_is_still_proved():
    model = Torchs(lambda x, y: x.mul_(2.0).add_(y)).eval()
    with torch.no_grad(), heedful.record(model) as recording:
        model(*torch.randn(2, B, N, WIDTH))
    assert recording[0].proof == "proved"


CUT = {
    "repeated": lambda x: x.repeat(2, 1, 1)[1 : B + 1],
    "joined": lambda x: torch.cat([x, x])[1 : B + 1],
    "expanded": lambda x: x[None].expand(2, -1, -1, -1).flatten(0, 1)[1 : B + 1],
}


@pytest.mark.parametrize("way", CUT)
def test_texts_that_are_cut_from_repeated_ones_are_not_proved(way):
    model, x = Torchs(CUT[way]).eval(), torch.randn(B, N, WIDTH)
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    assert recording[0].proof == "assumed"
    assert "'slice' put texts in other places" in recording[0].why


def test_tokens_that_are_cut_from_repeated_ones_have_no_names():
    class Turns(Attends):
        def forward(self, ids):
            x = self.table(ids)
            y = torch.cat([x, x], 1)[:, 1 : N + 1]
            return self.attend(y, y)

    [call] = looked_at(Turns(), IDS[:1], tokenizer=named)
    assert call.query_tokens is call.key_tokens is None


def test_what_is_written_into_one_of_two_inputs_is_in_the_other_too():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Torchs(lambda x: x)

        def forward(self, one, other):
            one.copy_(one.flip(0).clone())
            return self.inner(other)

    data = torch.randn(B + 1, N, WIDTH)
    with torch.no_grad(), heedful.record(model := Writes().eval()) as recording:
        model(data[:B], data[1:])
    assert recording[0].proof == "assumed"
