"""AdamW and Muon against NumPy formulas and torch, and the division of parameters between them."""

import copy
import subprocess
import sys

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import recipe
from torch import nn

from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.train import TrainSettings
from heedful.train.adamw import AdamW
from heedful.train.muon import COEFFICIENTS, Muon, block_matrices, orthogonalise
from heedful.train.optimizers import make_optimizer, set_rates

SETTINGS = TrainSettings(optimizer="muon", steps=10, warmup=0, decay="constant")


def by_definition(matrix):
    """The iterations in float64 without transposition."""
    x = matrix / np.linalg.norm(matrix)
    for a, b, c in COEFFICIENTS:
        x = a * x + b * x @ x.T @ x + c * x @ x.T @ x @ x.T @ x
    return x


def gpt(**changes):
    sizes = {"vocabulary": 11, "context_length": 7, "width": 12, "layers": 2, "heads": 3}
    torch.manual_seed(0)
    return GPT(GPTConfig(**{**sizes, "positions": "learned", **changes}))


def with_gradients(model):
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 7, 5), (1, 6, 6), (2, 4, 9), (3, 17, 5)])
def test_orthogonalise_equals_its_formula_for_each_matrix(shape):
    matrices = torch.randn(shape, dtype=torch.float64)
    expected = np.stack([by_definition(matrix) for matrix in matrices.numpy()])
    torch.testing.assert_close(orthogonalise(matrices), torch.from_numpy(expected))


def test_products_in_bfloat16_take_nearly_the_step_of_those_in_float32():
    def stepped(dtype):
        model = with_gradients(gpt())
        before = torch.cat([weight.flatten() for weight in block_matrices(model)]).detach()
        optimizer = make_optimizer(model, SETTINGS, matmul_dtype=dtype)
        set_rates(optimizer, 0, SETTINGS)
        optimizer.step()
        assert {state.dtype for each in optimizer.state.values() for state in each.values()} == {
            torch.float32
        }
        return torch.cat([weight.flatten() for weight in block_matrices(model)]).detach() - before

    exact, narrow = stepped(None), stepped(torch.bfloat16)
    error = float((narrow - exact).norm() / exact.norm())
    assert 1e-4 < error < 0.03


def test_three_steps_equal_the_formula():
    """Momentum, Nesterov's look ahead, the decay, and the sizes of two stacked matrices."""
    random = np.random.default_rng(0)
    weight, gradients = random.normal(size=(12, 4)), random.normal(size=(3, 12, 4))
    parameter = nn.Parameter(torch.from_numpy(weight.copy()))
    groups = [{"params": [parameter], "parts": [(9, 3)]}]
    optimizer = Muon(groups, lr=0.1, momentum=0.8, weight_decay=0.5)
    mean = np.zeros((12, 4))
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        mean = 0.8 * mean + 0.2 * gradient
        weight = weight * (1 - 0.1 * 0.5)
        direction = 0.2 * gradient + 0.8 * mean
        weight[:9] -= 0.1 * np.sqrt(9 / 4) * by_definition(direction[:9])
        weight[9:] -= 0.1 * by_definition(direction[9:])
        np.testing.assert_allclose(parameter.detach().numpy(), weight, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (gpt(kv_heads=1), {"projection": (12, 4, 4), "enter": (48,), "output": (12,)}),
        (gpt(activation="swiglu", hidden=20), {"projection": (12, 12, 12), "enter": (20, 20)}),
        (Bert(BertConfig(vocabulary=13, width=12, layers=1, heads=2)), {"projection": (12,) * 3}),
        (
            Seq2Seq(Seq2SeqConfig(vocabulary=13, width=12, layers=1, heads=2)),
            {"projection": (12,) * 3, "query": (12,), "memory": (12, 12)},
        ),
    ],
)
def test_matrices_are_those_of_the_blocks(model, expected):
    names = {parameter: name for name, parameter in model.named_parameters()}
    matrices = {names[parameter]: rows for parameter, rows in block_matrices(model).items()}
    inside = ("blocks.", "encoder.", "decoder.")
    assert set(matrices) == {n for p, n in names.items() if p.ndim == 2 and n.startswith(inside)}
    for last, rows in expected.items():
        assert {matrices[name] for name in matrices if name.split(".")[-2] == last} == {rows}
    assert all(sum(rows) == len(p) for p, rows in block_matrices(model).items())
    before = copy.deepcopy(with_gradients(model))
    optimizer = make_optimizer(model, SETTINGS)
    set_rates(optimizer, 0, SETTINGS)
    optimizer.step()
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        assert new.isfinite().all()
        assert not torch.equal(old, new)


def test_each_group_has_its_rate_and_its_decay():
    settings = TrainSettings(
        optimizer="muon", steps=10, warmup=0, decay="linear", final_rate=0.0, learning_rate=0.5,
        matrix_rate=0.25, convolution_rate=2.0, weight_decay=0.3, matrix_decay=0.7,
    )  # fmt: skip
    optimizer = make_optimizer(GPT(recipe().changed({"model": {"vocabulary": 19}}).model), settings)
    set_rates(optimizer, 5, settings)
    matrices, tables, vectors, convolved = groups = optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.125, 0.25, 0.25, 1.0]
    assert [group["weight_decay"] for group in groups] == pytest.approx([0.7, 0.3, 0.0, 0.0])
    assert [group["betas"] for group in (tables, vectors, convolved)] == [(0.9, 0.95)] * 3
    assert {p.ndim for p in matrices["params"]} == {p.ndim for p in tables["params"]} == {2}
    assert {p.ndim for p in vectors["params"]} == {1}
    assert [tuple(p.shape) for p in convolved["params"]] == [(24,), (24,)]


@hypothesis.settings(max_examples=20)
@given(st.integers(0, 99), st.sampled_from([0.0, 0.3]), st.floats(0.0, 0.99), st.floats(0.5, 0.999))
def test_each_step_is_torchs_bit_for_bit(seed, decay, beta1, beta2):
    torch.manual_seed(seed)
    shapes = [(3, 5), (7,), (2, 1, 4)]
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    references = [torch.nn.Parameter(p.detach().clone()) for p in parameters]

    def groups(parameters):
        return [{"params": parameters[:1], "weight_decay": decay}, {"params": parameters[1:]}]

    settings = {"lr": 0.03, "betas": (beta1, beta2), "weight_decay": 0.1}
    ours, torchs = (
        AdamW(groups(parameters), **settings),
        torch.optim.AdamW(groups(references), **settings, fused=True),
    )
    for step in range(4):
        for parameter, reference in zip(parameters, references, strict=True):
            parameter.grad = torch.randn_like(parameter)
            reference.grad = parameter.grad.clone()
        if step == 1:
            parameters[2].grad = references[2].grad = None  # not part of this step
        ours.step()
        torchs.step()
        for parameter, reference in zip(parameters, references, strict=True):
            assert torch.equal(parameter, reference)
    for parameter, reference in zip(parameters, references, strict=True):
        state, expected = ours.state[parameter], torchs.state[reference]
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in state)


STEP = """
import sys, torch
from heedful.models import GPT, GPTConfig, loss
from heedful.train import TrainSettings
from heedful.train.optimizers import make_optimizer, set_rates
model, ids = GPT(GPTConfig(vocabulary=9)), torch.ones(1, 5, dtype=torch.int64)
settings = TrainSettings(optimizer="muon")
optimizer = make_optimizer(model, settings)
set_rates(optimizer, 0, settings)
loss(model(ids).logits, ids).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
print("torch._dynamo" in sys.modules)
"""


def test_a_step_does_not_import_torchs_compiler():
    step = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert step.stdout.strip() == "False"
