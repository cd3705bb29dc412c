"""What optimizers are given: the rate and the decay of each group of parameters."""

import pytest
from small_runs import recipe

from heedful.models import GPT
from heedful.train import TrainSettings
from heedful.train.optimizers import make_optimizer, set_rates


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
