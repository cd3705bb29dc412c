"""Addresses of storages: held while they are known, and let go of once, whatever comes between."""

from collections import Counter

import pytest
import torch
from looked import WIDTH, Heads, M, N
from torch import nn
from torch.nn import functional

import heedful
from heedful.recorder.following import addresses
from heedful.recorder.following.parameters import Parameters
from heedful.recorder.following.storages import ASKED, EVERY, Traced


def homes(number):
    return [torch.ones(3).untyped_storage() for _ in range(number)]


def test_each_is_let_go_of_once_also_where_ctrl_c_comes_between(monkeypatch):
    forgotten = Counter()

    def forget(mark):
        forgotten[mark] += 1
        if len(forgotten) == 3:
            raise KeyboardInterrupt

    held = addresses.Addresses(several := homes(7))
    marks = list(held.marks.values())
    own = addresses._forget
    monkeypatch.setattr(addresses, "_forget", forget)
    with pytest.raises(KeyboardInterrupt):
        held.clear()
    held.clear()
    assert forgotten == Counter(marks)
    assert len(several) == 7
    assert not held.marks
    for mark in marks:
        own(mark)


def test_a_storage_that_is_held_again_has_one_weak_reference(monkeypatch):
    made = []

    class Home:
        _cdata = 7

        def _weak_ref(self):
            made.append(len(made))
            return made[-1]

    held = addresses.Addresses([Home(), Home()])
    held.hold(Home())
    assert made == [0]
    monkeypatch.setattr(addresses, "_forget", made.remove)
    held.clear()
    assert made == []


def test_an_address_is_no_other_storages_while_it_is_held():
    held = addresses.Addresses()
    for _ in range(100):
        tensor = torch.ones(5)
        home = tensor.untyped_storage()
        assert home._cdata not in held.marks
        held.hold(home)
        held.hold(home)
        del tensor, home
    assert len(held.gone()) == len(held.marks) == 100
    held.free(held.gone())
    assert not held.marks


@pytest.mark.parametrize("live", [0, 40, 200])
def test_what_is_gone_is_soon_forgotten(live):
    traced = Traced(Parameters({}))
    kept = [torch.ones(3) for _ in range(live)]
    for one in (*kept, gone := torch.ones(3)):
        traced.of(one)
    del gone, one
    for _ in range(max(EVERY, -(-(live + 1) // ASKED))):
        assert len(traced._kept) == live + 1
        traced.let_go()
    assert len(traced._kept) == live


class ViewedFirst(nn.Module):
    """Its first operation takes a view of a parameter, which then multiplies from the left."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 24), nn.Linear(12, 4)
        self.latent = nn.Parameter(torch.randn(2, 12))
        self.other = nn.Parameter(torch.randn(12, 24))

    def forward(self, x):
        beside = functional.linear(self.latent, self.first.weight).sum()
        asked = (self.other @ self.first.weight).unflatten(0, (3, 4)).permute(2, 0, 1)
        key = self.second(x)[0]
        return (asked @ key.mT).softmax(-1) @ key + 1e-3 * beside


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_second_pass_knows_what_the_first_one_knew(mode):
    with mode(), heedful.record(model := ViewedFirst().eval()) as recording:
        for _ in range(3):
            model(torch.randn(1, 5, 12))
    first, second, third = ([(one.proof, one.why) for one in calls] for calls in passes(recording))
    assert first == second == third
    assert first[0][0] == "assumed"  # 12 queries may be heads


def passes(recording):
    return [[one for one in recording if one.pass_index == number] for number in range(3)]


def test_a_view_of_a_sparse_parameter_is_the_users_own():
    model = Heads(lambda q, k: (q @ k.mT).softmax(-1) @ k + 0 * model.sparse.detach().sum())
    model.sparse = nn.Parameter(torch.eye(4).to_sparse())
    with torch.no_grad(), heedful.record(model) as recording:
        model.sparse.t()
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    assert recording[0].proof == "proved"
