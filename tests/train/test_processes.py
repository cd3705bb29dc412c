"""Batches, splits, tensors and updates divided among processes, and how processes are identified.

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

from heedful.errors import ArgumentError, HeedfulError
from heedful.models import GPT, GPTConfig
from heedful.processes import OtherProcessError, Processes
from heedful.torchrun import started
from heedful.train import muon
from heedful.train.batches import BatchIndex, take_turns
from heedful.train.muon import Muon, block_matrices
from heedful.train.parallel import (
    all_gather,
    copy_rows,
    first_row,
    full_tensor,
    local_rows,
    map_distributed,
    overlap,
)
from heedful.train.tasks import MaskedTexts, MaskedWords, NextToken, PaddedPairs, Translating


def processes(size):
    return [Processes(rank, size) for rank in range(size)]


@given(number=st.integers(0, 300), size=st.integers(1, 40))
def test_shares_cover_everything_once_and_are_nearly_equal(number, size):
    shares = [list(range(number))[process.share(number)] for process in processes(size)]
    assert [*chain(*shares)] == list(range(number))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(number=st.integers(0, 60), size=st.integers(1, 9))
def test_each_batch_is_new_once_and_all_processes_have_equal_turns(number, size):
    turns = [list(take_turns(iter(range(number)), process)) for process in processes(size)]
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


def without_padding(batch, rows=slice(None)):
    """Return the content of a batch, or of some of its rows, without padding."""
    if isinstance(batch, PaddedPairs):
        source, inputs, targets, source_keep, target_keep = (each[rows] for each in batch)
        return source[source_keep], inputs[target_keep], targets[target_keep], source_keep.sum(1)
    if isinstance(batch, MaskedTexts):
        return batch.ids[rows], batch.is_target[rows], batch.targets.view(len(batch.ids), -1)[rows]
    return tuple(each[rows] for each in batch)


@pytest.mark.parametrize("name", ["next", "words", "pairs"])
@pytest.mark.parametrize(("batch", "size"), [(7, 2), (5, 3), (4, 4)])
@pytest.mark.parametrize("first", [None, 3])
def test_each_process_draws_its_rows_of_the_batch(name, batch, size, first, tmp_path):
    task = tasks(tmp_path)[name]
    for step in range(5):  # some batches of masked words are short
        index = BatchIndex((17, step, 0), first)
        all_rows, total, targets = task.draw(batch, index), 0.0, 0
        for process in processes(size):
            rows = process.share(batch)
            mine = task.draw(batch, index, rows)
            assert all(map(torch.equal, without_padding(mine), without_padding(all_rows, rows)))
            assert task.target_share(batch, index, rows) == pytest.approx(
                task.target_count(mine) / task.target_count(all_rows)
            )
            total += task.target_share(batch, index, rows)
            targets += task.target_count(mine)
        assert total == pytest.approx(1.0)
        assert targets == task.target_count(all_rows)


class FakeMesh:
    def __init__(self, rank, size):
        self.rank, self.number = rank, size

    def size(self):
        return self.number

    def get_local_rank(self):
        return self.rank


class FakeDTensor:
    """The methods of a DTensor that heedful uses; rows are split by `torch.chunk`, as in FSDP2."""

    def __init__(self, tensor, rank, size):
        parts = torch.chunk(tensor, size)
        self.rows = parts[rank] if rank < len(parts) else tensor[:0]
        self.shape, self.device_mesh, self.all = tensor.shape, FakeMesh(rank, size), tensor

    def to_local(self):
        return self.rows

    def full_tensor(self):
        return self.all


@given(
    rows=st.integers(1, 17), size=st.integers(1, 6), start=st.integers(0, 16), n=st.integers(0, 17)
)
def test_overlaps_of_all_processes_are_the_full_tensor(rows, size, start, n):
    start, n = min(start, rows), min(n, rows - min(start, rows))
    plain, values = torch.zeros(rows, 3), torch.randn(n, 3)
    expected = plain.clone()
    expected[start : start + n] += values
    for rank in range(size):
        mine, part = overlap(FakeDTensor(plain, rank, size), start, values)
        assert mine.shape == part.shape
        mine += part  # changes the full tensor in place
    assert torch.equal(plain, expected)
    mine, part = overlap(expected, start, values)
    assert torch.equal(mine, part)


@pytest.fixture
def group():
    """A process group of this process alone, with real DTensors."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_real_shards_are_filled_and_gathered(group):
    from torch.distributed.tensor import Shard, distribute_tensor

    sharded = distribute_tensor(torch.zeros(5, 3), group, [Shard(0)])
    values = torch.randn(5, 3)
    copy_rows(sharded, values)
    assert torch.equal(full_tensor(sharded), values)
    [gathered] = all_gather([local_rows(sharded)], [5], Processes())
    assert torch.equal(gathered, values)
    rows, part = overlap(sharded, 2, torch.ones(2, 3))
    rows += part
    assert torch.equal(full_tensor(sharded)[2:4], values[2:4] + 1)
    assert first_row(sharded) == 0


def gathered_by_all(size, send):
    """Return the messages that `send` sends in each process, and its result in the first."""
    parts = []
    with pytest.MonkeyPatch.context() as patch:  # each process sends its rows and receives nothing
        patch.setattr(dist, "all_gather_single", lambda every, mine: parts.append(mine))
        for process in processes(size):
            send(process)
        assert len({len(mine) for mine in parts}) == 1
        assert len(parts) == size
        patch.setattr(dist, "all_gather_single", lambda every, mine: every.copy_(torch.cat(parts)))
        return parts, send(Processes(0, size))


def mapped_by_all(function, stacks, processes):
    """Yield the results of all processes, computed one after another in this process."""
    stacks = list(stacks)
    _, results = gathered_by_all(processes.size, lambda p: [*map_distributed(function, stacks, p)])
    yield from results


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4), size=st.integers(2, 12))
def test_rows_of_many_tensors_are_gathered_by_one_message(lengths, size):
    tensors = [torch.randn(length, 2 + length % 3) for length in lengths]

    def send(process):
        rows = [local_rows(FakeDTensor(tensor, process.rank, size)) for tensor in tensors]
        return all_gather(rows, lengths, process)

    messages, gathered = gathered_by_all(size, send)
    for result, tensor in zip(gathered, tensors, strict=True):
        assert torch.equal(result, tensor)
    rows = sum(-(-len(tensor) // size) * tensor.shape[1] for tensor in tensors)
    assert len(messages[0]) == rows


@pytest.mark.parametrize("size", [2, 3, 5, 40])
def test_distributed_muon_takes_the_same_step(size, monkeypatch):
    monkeypatch.setattr(muon, "map_distributed", mapped_by_all)

    def stepped(process):
        torch.manual_seed(5)
        config = GPTConfig(vocabulary=13, context_length=8, width=12, heads=2, layers=2, kv_heads=1)
        model = GPT(config)
        matrices = block_matrices(model)
        group = {"params": list(matrices), "parts": list(matrices.values()), "weight_decay": 0.1}
        optimizer = Muon([group], lr=0.02, processes=process)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        return list(model.parameters())

    shared = stepped(Processes(0, size))
    monkeypatch.undo()
    for parameter, expected in zip(shared, stepped(None), strict=True):
        torch.testing.assert_close(parameter, expected, atol=1e-5, rtol=1e-4)


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
def test_processes_from_the_environment_of_torchrun(values, expected, monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in zip(NAMES, values, strict=False):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29500")
    if isinstance(expected, str):
        with pytest.raises(ArgumentError, match=expected):
            started()
        return
    process = started()
    assert (process.rank, process.size, process.local, process.restarts) == expected


@pytest.fixture
def three(monkeypatch):
    """Three processes with a common store, as under torchrun, which do not wait for each other."""
    monkeypatch.setattr("heedful.processes.GRACE", 0.0)
    monkeypatch.setattr("heedful.processes._abort_group", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    store, each = dist.HashStore(), processes(3)
    for process in each:
        process.__dict__["store"] = store
    return each


def test_announcements_and_failures_of_the_first_reach_the_others(three):
    first, other, _ = three
    with first.publishing():
        first.publish({"steps": 3})
    assert other.await_published() == {"steps": 3}
    with pytest.raises(HeedfulError, match="nothing"), first.publishing():
        raise HeedfulError("nothing")
    with pytest.raises(OtherProcessError):
        other.await_published()


LATE, CLOSED = "gloo: Timed out waiting", "gloo: Connection closed"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (LATE, "no answer from process 2 of 3 in 7 s; likely cause: it hangs"),
        (CLOSED, "no answer from process 2 of 3; likely cause: it was killed"),
    ],
)
def test_a_missing_process_is_named_by_one_remaining_process(words, expected, three):
    three[1].store.set("left 1", b"")
    assert expected in str(three[0]._error_to_report(RuntimeError(words), 7))
    assert isinstance(three[1]._error_to_report(RuntimeError(words), 7), OtherProcessError)


def test_a_process_reports_its_own_error(three):
    error = HeedfulError("a full disk")
    assert three[2]._error_to_report(error, 7) is error
    for other in three[:2]:
        assert isinstance(other._error_to_report(RuntimeError(CLOSED), 7), OtherProcessError)
