"""What is told of memory before any work, against what real small runs keep."""

import dataclasses
import weakref

import pytest
import torch
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
from heedful.processes import Processes
from heedful.train import PRESETS, TrainSettings, new_plan
from heedful.train.memory import check_memory, memory, said
from heedful.train.optimizers import make_optimizer, set_rates

BATCH, CONTEXT = 3, 37
SHAPE = {"vocabulary": 211, "context_length": CONTEXT, "width": 60, "layers": 3, "heads": 6}


def kept_by(model, run):
    """The bytes that autograd keeps for the gradient, weights aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no place is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    result.backward()
    return sum(size for place, (size, _) in kept.items() if place not in weights)


def gpt(**changes):
    config = GPTConfig(**SHAPE, **changes)
    model, ids = GPT(config), torch.randint(0, 211, (BATCH, CONTEXT))
    return config, model, lambda: loss(model(ids).logits, ids, 0.0)


def bert():
    config = BertConfig(**SHAPE, pooler=False)
    model, ids = Bert(config), torch.randint(0, 211, (BATCH, CONTEXT))
    asked = torch.arange(BATCH * CONTEXT).reshape(BATCH, CONTEXT) % 7 == 0  # a seventh, about 15 %
    return config, model, lambda: loss(model.head(model.hidden_states(ids)[-1][asked]), ids[asked])


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
    "weighed": lambda: gpt(value_embeddings=True, residual_scalars=True, kv_heads=2),
    "bert": bert,
    "pairs": pairs,
}


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_near_what_a_run_takes(case):
    config, model, run = CASES[case]()
    told = memory(config, TrainSettings(batch=BATCH))
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert told.parameters == pytest.approx(numbers, rel=0.03)
    model.train()
    blocks_and_logits = kept_by(model, run)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    state = sum(t.nbytes for one in optimizer.state.values() for t in one.values())
    weights = sum(2 * parameter.nbytes for parameter in parameters_of(model).values())
    ours = told.weights - config.layers * 60_000  # Python's objects aside
    assert ours == pytest.approx(state + weights, rel=0.15, abs=70_000 * 3)
    taken = blocks_and_logits + BATCH * CONTEXT * 211 * 4  # and the gradient of the logits
    assert told.blocks + told.logits == pytest.approx(taken, rel=0.35)


def test_what_value_embeddings_and_scalars_keep_is_counted():
    plain, both = gpt(), gpt(value_embeddings=True, residual_scalars=True)
    kept = kept_by(*both[1:]) - kept_by(*plain[1:])
    told = [memory(one[0], TrainSettings(batch=BATCH)).blocks for one in (both, plain)]
    assert told[0] - told[1] == pytest.approx(kept, rel=0.3)


@pytest.mark.parametrize(
    ("section", "changes", "remedy"),
    [
        ("model", {"width": 10**9}, "--width"),
        ("model", {"layers": 10**6}, "fewer --layers"),
        ("model", {"context_length": 10**12}, "--context-length"),
        ("text", {"vocabulary": 10**12}, "--vocabulary"),
        ("train", {"batch": 10**12}, "--batch"),
        ("train", {"seed": 10**30}, "Seed"),
    ],
)
def test_what_fits_no_machine_is_refused_before_any_work(section, changes, remedy, tmp_path):
    with pytest.raises(ArgumentError, match=remedy):
        new_plan(tmp_path / "run", (), PRESETS["quick"].changed({section: changes}))
    assert not (tmp_path / "run").exists()


def test_the_machine_is_asked_for_all_of_it_and_not_more(monkeypatch):
    config = dataclasses.replace(PRESETS["gpt2"].model, vocabulary=50_257)
    settings = TrainSettings(batch=12)
    needed = memory(config, settings).total
    for has, refused in ((needed, False), (needed - 1, True), (None, False)):
        monkeypatch.setattr("heedful.train.memory.machine_memory", lambda device, has=has: has)
        if refused:
            with pytest.raises(ArgumentError, match=f"about {said(needed)} of memory"):
                check_memory(config, settings, "cpu")
        else:
            check_memory(config, settings, "cpu")


class Largest(TorchDispatchMode):
    """The most bytes that are alive at once, of the tensors that are made meanwhile."""

    def __init__(self):
        super().__init__()
        self.alive, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.alive:
                    self.alive[storage.data_ptr()] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, storage.data_ptr(), None)
        self.most = max(self.most, sum(self.alive.values()))
        return result


@pytest.mark.parametrize(
    "changes",
    [{}, {"activation": "swiglu"}, {"kv_heads": 2, "hidden": 90}, {"layers": 1, "width": 96}],
)
@pytest.mark.parametrize("processes", [1, 2, 8])
def test_the_step_of_muon_takes_what_is_told(changes, processes, monkeypatch):
    """What its first step makes: its means, what it steps by, and the products of one stack.

    Of several processes one is here, and what the others would send is its own once more.
    """

    def of_all(every, mine):
        every.view(processes, -1)[:] = mine

    monkeypatch.setattr(torch.distributed, "all_gather_single", of_all)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total: None)
    config = GPTConfig(**{**SHAPE, **changes})
    model = GPT(config)
    settings = TrainSettings(optimizer="muon", batch=BATCH)
    optimizer = make_optimizer(model, settings, Processes(size=processes))
    set_rates(optimizer, 0, settings, tokens=1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    with Largest() as made:
        optimizer.step()
    weights = sum(2 * parameter.nbytes for parameter in parameters_of(model).values())
    told = memory(config, settings, processes).weights - config.layers * 60_000
    assert told == pytest.approx(weights + made.most, rel=0.25)
