"""The memory estimate, compared with the memory of small runs."""

import dataclasses
import weakref

import pytest
import torch
from rich.filesize import decimal
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.errors import ArgumentError
from heedful.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    Seq2Seq,
    Seq2SeqConfig,
    loss,
    parameters_of,
)
from heedful.train import PRESETS, TrainSettings, new_plan
from heedful.train.memory_estimate import check_memory, memory, parameters
from heedful.train.optimizers import make_optimizer, set_rates

BATCH, CONTEXT = 3, 37
SHAPE = {"vocabulary": 211, "context_length": CONTEXT, "width": 60, "layers": 3, "heads": 6}


class SavedBytes:
    """The number of bytes that autograd stores for the backward pass, without weights."""

    def __init__(self, model, run):
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        stored = {}

        def store(tensor):
            storage = tensor.untyped_storage()
            stored[storage.data_ptr()] = storage.nbytes(), tensor  # else addresses are reused
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
            result = run()
        result.backward()
        self.bytes = sum(size for address, (size, _) in stored.items() if address not in weights)


class PeakBytes(TorchDispatchMode):
    """The peak number of bytes of the tensors allocated inside."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.alive:
                    self.alive[storage.data_ptr()] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, storage.data_ptr(), None)
        self.peak = max(self.peak, sum(self.alive.values()))
        return result


def gpt(**changes):
    config = GPTConfig(**SHAPE, **changes)
    model, ids = GPT(config), torch.randint(0, 211, (BATCH, CONTEXT))
    return config, model, lambda: loss(model(ids).logits, ids, 0.0)


def bert():
    config = BertConfig(**SHAPE, pooler=False)
    model, ids = Bert(config), torch.randint(0, 211, (BATCH, CONTEXT))
    masks = torch.arange(BATCH * CONTEXT).reshape(BATCH, CONTEXT) % 7 == 0  # masks a seventh
    return config, model, lambda: loss(model.head(model.hidden_states(ids)[-1][masks]), ids[masks])


def pairs():
    config = Seq2SeqConfig(**SHAPE)
    model, ids = Seq2Seq(config), torch.randint(0, 211, (BATCH, CONTEXT))
    keep = torch.ones(BATCH, CONTEXT, dtype=torch.bool)
    return (
        config,
        model,
        lambda: loss(model(ids, ids, source_keep=keep, target_keep=keep).logits, ids, 0.0),
    )


CASES = {
    "quick": gpt,
    "gates": lambda: gpt(activation="swiglu"),
    "grouped": lambda: gpt(kv_heads=2, tied=False),
    "gpt2": lambda: gpt(
        norm="layer", qk_norm=False, bias=True, positions="learned", activation="gelu_tanh"
    ),
    "dropout": lambda: gpt(dropout=0.1),
    "bert": bert,
    "pairs": pairs,
}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_near_what_a_run_takes(case, optimizer):
    config, model, run = CASES[case]()
    settings = TrainSettings(batch=BATCH, optimizer=optimizer)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert parameters(config) == pytest.approx(numbers, rel=0.03)
    model.train()
    of_batch = SavedBytes(model, run).bytes + BATCH * CONTEXT * 211 * 4  # and the logits' gradient
    stepping = make_optimizer(model, settings)
    set_rates(stepping, 0, settings)
    with PeakBytes() as allocated:
        stepping.step()
    weights = sum(2 * parameter.nbytes for parameter in parameters_of(model).values())
    assert memory(config, settings) == pytest.approx(of_batch + weights + allocated.peak, rel=0.35)
    of_states = memory(config, settings) - memory(config, dataclasses.replace(settings, batch=1))
    assert of_states * BATCH / (BATCH - 1) == pytest.approx(of_batch, rel=0.35)


@pytest.mark.parametrize(
    ("section", "changes", "remedy"),
    [
        ("model", {"width": 10**9}, "--width"),
        ("text", {"vocabulary": 10**12}, "--vocabulary"),
        ("train", {"batch": 10**12}, "--batch"),
        ("train", {"seed": 10**30}, "seed = "),
    ],
)
def test_impossible_sizes_are_refused_before_any_work(section, changes, remedy, tmp_path):
    with pytest.raises(ArgumentError, match=remedy):
        new_plan(tmp_path / "run", (), PRESETS["quick"].changed({section: changes}))
    assert not (tmp_path / "run").exists()


def test_the_estimate_is_compared_with_the_machines_total_memory(monkeypatch):
    config = dataclasses.replace(PRESETS["gpt2"].model, vocabulary=50_257)
    settings = TrainSettings(batch=12)
    needed = memory(config, settings)
    for available in (needed, None):
        monkeypatch.setattr(
            "heedful.train.memory_estimate.machine_memory", lambda device, result=available: result
        )
        check_memory(config, settings, "cpu")
    monkeypatch.setattr("heedful.train.memory_estimate.machine_memory", lambda device: needed - 1)
    with pytest.raises(ArgumentError, match=f"about {decimal(needed)} of memory"):
        check_memory(config, settings, "cpu")


def test_several_processes_need_less_memory_each():
    config = GPTConfig(vocabulary=50257, width=768, layers=12, heads=12)
    of_states = 16 * parameters(config)

    def of_batch(batch, processes, **changes):
        return memory(config, TrainSettings(batch=batch, **changes), processes) - of_states

    assert of_batch(16, 4) == of_batch(4, 1)
    assert of_batch(5, 4) == of_batch(8, 4)  # one process has two sequences
    assert of_batch(16, 4, shard=True) == pytest.approx(of_batch(4, 1) - 0.75 * of_states)
