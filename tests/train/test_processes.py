"""What each of several processes has of a batch, a split, a tensor and an update; and who they are.

Real processes, which train together, are in `tests/slow/test_processes.py`.
"""

import signal
from itertools import chain

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from heedful.errors import ArgumentError, HeedfulError
from heedful.models import GPT, GPTConfig
from heedful.processes import EndedElsewhereError, Processes
from heedful.torchrun import started
from heedful.train import muon
from heedful.train.batches import Which, in_turns
from heedful.train.muon import Muon, matrices_of
from heedful.train.parallel import (
    clip,
    fill,
    first_row,
    held,
    joined,
    local,
    shared_out,
    whole,
)
from heedful.train.tasks import Gaps, MaskedWords, NextToken, PaddedPairs, Translating


def processes(size):
    return [Processes(rank, size) for rank in range(size)]


@given(number=st.integers(0, 300), size=st.integers(1, 40))
def test_shares_are_all_of_it_once_and_as_equal_as_can_be(number, size):
    shares = [list(range(number))[one.share(number)] for one in processes(size)]
    assert [*chain(*shares)] == list(range(number))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(number=st.integers(0, 60), size=st.integers(1, 9))
def test_each_batch_is_new_once_and_all_have_as_many_turns(number, size):
    turns = [list(in_turns(iter(range(number)), one)) for one in processes(size)]
    assert len(set(map(len, turns))) == 1
    new = [[batch for batch, is_new in each if is_new] for each in turns]
    assert sorted(chain(*new)) == list(range(number))
    assert all(0 <= batch < number for each in turns for batch, _ in each)


def pairs(tmp_path):
    random = np.random.default_rng(3)
    return [
        tuple(random.integers(0, 11, random.integers(1, 9)) for _ in range(2)) for _ in range(29)
    ]


def tasks(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 11, 500)
    special = {"pad": 0, "cls": 1, "sep": 2, "mask": 3}
    return {
        "next": NextToken(tokens, tokens[:100], 13),
        "words": MaskedWords(tokens + 4, tokens[:100] + 4, 13, special, 15),
        "pairs": Translating(pairs(tmp_path), [], 9, 12),
    }


def kept(batch, rows=slice(None)):
    """What is in a batch, or in rows of it, apart from padding."""
    if isinstance(batch, PaddedPairs):
        source, inputs, targets, source_keep, target_keep = (each[rows] for each in batch)
        return source[source_keep], inputs[target_keep], targets[target_keep], source_keep.sum(1)
    if isinstance(batch, Gaps):
        return batch.ids[rows], batch.places[rows], batch.words.view(len(batch.ids), -1)[rows]
    return tuple(each[rows] for each in batch)


@pytest.mark.parametrize("name", ["next", "words", "pairs"])
@pytest.mark.parametrize(("batch", "size"), [(7, 2), (5, 3), (4, 4)])
@pytest.mark.parametrize("first", [None, 3])
def test_what_each_draws_are_rows_of_the_whole_batch(name, batch, size, first, tmp_path):
    task = tasks(tmp_path)[name]
    for step in range(5):  # of masked words, some are short
        which = Which((17, step, 0), first)
        every, total, targets = task.draw(batch, which), 0.0, 0
        for one in processes(size):
            rows = one.share(batch)
            mine = task.draw(batch, which, rows)
            assert all(map(torch.equal, kept(mine), kept(every, rows)))
            assert task.share(batch, which, rows) == pytest.approx(
                task.targets(mine) / task.targets(every)
            )
            total, targets = total + task.share(batch, which, rows), targets + task.targets(mine)
        assert total == pytest.approx(1.0)
        assert targets == task.targets(every)


class Mesh:
    def __init__(self, rank, size):
        self.rank, self.number = rank, size

    def size(self):
        return self.number

    def get_local_rank(self):
        return self.rank


class Part:
    """What this project asks of a DTensor, cut as `torch.chunk` cuts, which is how FSDP2 does."""

    def __init__(self, tensor, rank, size):
        parts = torch.chunk(tensor, size)
        self.rows = parts[rank] if rank < len(parts) else tensor[:0]
        self.shape, self.device_mesh, self.all = tensor.shape, Mesh(rank, size), tensor

    def to_local(self):
        return self.rows

    def full_tensor(self):
        return self.all


@given(
    rows=st.integers(1, 17), size=st.integers(1, 6), start=st.integers(0, 16), n=st.integers(0, 17)
)
def test_rows_that_are_held_are_those_of_the_whole(rows, size, start, n):
    start, n = min(start, rows), min(n, rows - min(start, rows))
    plain, values = torch.zeros(rows, 3), torch.randn(n, 3)
    expected = plain.clone()
    expected[start : start + n] += values
    for rank in range(size):
        mine, part = held(Part(plain, rank, size), start, values)
        assert mine.shape == part.shape
        mine += part  # in the tensor's own memory
    assert torch.equal(plain, expected)
    mine, part = held(expected, start, values)
    assert torch.equal(mine, part)


@pytest.fixture
def group():
    """A process group of one: its DTensors are real ones."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_real_shards_are_filled_and_gathered(group):
    from torch.distributed.tensor import Shard, distribute_tensor

    cut = distribute_tensor(torch.zeros(5, 3), group, [Shard(0)])
    values = torch.randn(5, 3)
    fill(cut, values)
    assert torch.equal(whole(cut), values)
    [found] = joined([local(cut)], [5], Processes())
    assert torch.equal(found, values)
    rows, part = held(cut, 2, torch.ones(2, 3))
    rows += part
    assert torch.equal(whole(cut)[2:4], values[2:4] + 1)
    assert first_row(cut) == 0


def joined_by_all(size, ask):
    """What `ask` of each process sends the others in its one message, and what the first makes."""
    parts = []
    with pytest.MonkeyPatch.context() as patch:  # each sends what it has, and receives nothing
        patch.setattr(dist, "all_gather_single", lambda every, mine: parts.append(mine))
        for one in processes(size):
            ask(one)
        assert len({len(mine) for mine in parts}) == 1
        assert len(parts) == size
        patch.setattr(dist, "all_gather_single", lambda every, mine: every.copy_(torch.cat(parts)))
        return parts, ask(Processes(0, size))


def shared_by_all(function, stacks, here):
    """What all processes together make, one after the other in this one."""
    stacks = list(stacks)
    _, found = joined_by_all(here.size, lambda one: list(shared_out(function, stacks, one)))
    yield from found


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), size=st.integers(2, 12))
def test_rows_of_many_tensors_are_joined_by_one_message(lengths, size):
    tensors = [torch.randn(length, 2 + length % 3) for length in lengths]

    def ask(one):
        return joined([local(Part(tensor, one.rank, size)) for tensor in tensors], lengths, one)

    told, found = joined_by_all(size, ask)
    for whole_one, tensor in zip(found, tensors, strict=True):
        assert torch.equal(whole_one, tensor)
    rows = sum(-(-len(tensor) // size) * tensor.shape[1] for tensor in tensors)
    assert len(told[0]) == rows


@pytest.mark.parametrize("size", [2, 3, 5, 40])
def test_muon_that_is_shared_out_takes_the_same_step(size, monkeypatch):
    monkeypatch.setattr(muon, "shared_out", shared_by_all)

    def stepped(here):
        torch.manual_seed(5)
        config = GPTConfig(vocabulary=13, context_length=8, width=12, heads=2, layers=2, kv_heads=1)
        model = GPT(config)
        matrices = matrices_of(model)
        group = {"params": list(matrices), "parts": list(matrices.values()), "weight_decay": 0.1}
        optimizer = Muon([group], lr=0.02, here=here)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        return list(model.parameters())

    shared = stepped(Processes(0, size))
    monkeypatch.undo()
    for found, expected in zip(shared, stepped(None), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (0, 1, 0, 0)),
        (["0", "1"], (0, 1, 0, 0)),
        (["5", "8", "1", "2", "node"], (5, 8, 1, 2)),
        (["5", "2", "1", "0", "node"], "RANK='5', WORLD_SIZE='2'"),
        (["-1", "2", "0", "0", "node"], "RANK='-1'"),
        (["one", "2", "0", "0", "node"], "RANK='one'"),
        (["1", "2"], "MASTER_ADDR=''"),
    ],
)
def test_who_this_is_by_what_torchrun_says(values, expected, monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in zip(NAMES, values, strict=False):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29500")
    if isinstance(expected, str):
        with pytest.raises(ArgumentError, match=expected):
            started()
        return
    here = started()
    assert (here.rank, here.size, here.local, here.restarts) == expected


@pytest.fixture
def three(monkeypatch):
    """Processes that share a store, as torchrun gives them one; they wait for nobody."""
    monkeypatch.setattr("heedful.processes.GRACE", 0.0)
    monkeypatch.setattr("heedful.processes._hang_up", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # which ignores torchrun from then on
    store, each = dist.HashStore(), processes(3)
    for one in each:
        one.__dict__["store"] = store
    return each


def test_what_the_first_announces_is_heard_and_what_goes_wrong_too(three):
    first, other, _ = three
    with first.announcing():
        first.announce({"steps": 3})
    assert other.announced() == {"steps": 3}
    with pytest.raises(HeedfulError, match="nothing"), first.announcing():
        raise HeedfulError("nothing")
    with pytest.raises(EndedElsewhereError):
        other.announced()


LATE, CLOSED = "gloo: Timed out waiting", "gloo: Connection closed"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (LATE, "no answer from process 2 of 3 in 7 s; likely cause: it hangs"),
        (CLOSED, "no answer from process 2 of 3; likely cause: it was killed"),
    ],
)
def test_a_missing_process_is_named_by_one_of_those_that_are_left(words, expected, three):
    three[1].store.set("left 1", b"")
    assert expected in str(three[0]._reported(RuntimeError(words), 7))
    assert isinstance(three[1]._reported(RuntimeError(words), 7), EndedElsewhereError)


def test_an_error_of_its_own_is_reported_where_it_happened(three):
    error = HeedfulError("a full disk")
    assert three[2]._reported(error, 7) is error
    for other in three[:2]:
        assert isinstance(other._reported(RuntimeError(CLOSED), 7), EndedElsewhereError)


@pytest.mark.parametrize(("most", "others"), [(99.0, 0.0), (0.5, 0.0), (0.5, 9.0)])
def test_gradients_that_are_cut_are_clipped_as_whole_ones(most, others, group, monkeypatch):
    """`others` is what the squares of the rows that other processes have add up to."""
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(0)
    plain = [nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(4))]
    for one in plain:
        one.grad = torch.randn_like(one)
    cut = [nn.Parameter(distribute_tensor(one.detach(), group, [Shard(0)])) for one in plain]
    for one, of in zip(cut, plain, strict=True):
        one.grad = distribute_tensor(of.grad, group, [Shard(0)])
    elsewhere = nn.Parameter(torch.zeros(1))
    elsewhere.grad = torch.tensor([others**0.5])
    nn.utils.clip_grad_norm_([*plain, elsewhere], most)
    monkeypatch.setattr(Processes, "sums", lambda here, numbers, device: [numbers[0] + others])
    clip(cut, most, Processes(0, 2))
    for one, of in zip(cut, plain, strict=True):
        torch.testing.assert_close(local(one.grad), of.grad)
