"""docs/scale.md has the tables of its script; the formulas agree with torch and public runs."""

import doctest
import importlib
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from heedful.models import GPT, GPTConfig
from heedful.train.muon import orthogonal

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.append(str(DOCS))  # its scripts find each other there
SCRIPTS = ("scale", "scale_model", "scale_pictures", "scale_runs")
scale, model, scale_pictures, scale_runs = map(importlib.import_module, SCRIPTS)
A100, H100, SHAPES = model.A100, model.H100, model.SHAPES

PAGE = (DOCS / "scale.md").read_text("utf-8")
SMALL, LARGE = SHAPES[0], SHAPES[-1]


def test_the_tables_of_the_page_are_those_of_the_script():
    assert scale.page_with(PAGE) == PAGE, "run `python docs/scale.py docs/scale.md docs/pictures`"
    assert set(re.findall("<!-- (.*) -->", PAGE)) == set(scale.TABLES)


def test_a_table_that_is_old_is_made_anew():
    old = "before\n\n<!-- muon -->\n\n| a |\n| --- |\n| 1 |\n\nafter\n"
    new = scale.page_with(old)
    assert new == f"before\n\n<!-- muon -->\n\n{scale.muon()}\n\nafter\n"
    assert scale.page_with(new) == new


def test_its_pictures_are_drawn(tmp_path):
    scale_pictures.draw(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"scale-speed.png", "scale-memory.png"}
    for path in tmp_path.iterdir():
        assert f"(pictures/{path.name})" in PAGE
        assert (DOCS / "pictures" / path.name).exists()


def test_numbers_for_people():
    assert doctest.testmod(scale).failed == 0


BY_HAND = model.step(SMALL, H100, 64, "ddp")
SAID = {  # in the page's sentences: what must be there, and its value
    "by a factor between {:.2f} and": min(run.off for run in scale_runs.WHOLE),
    "between 0.74 and {:.2f}": max(run.off for run in scale_runs.WHOLE),
    "once in {:,.0f} GPU hours": round(model.GPU_HOURS, -2),
    "124 M reaches {:.2f} of an H100's peak": model.utilization(H100, SMALL.parameters),
    "peak, 7 B {:.2f}": model.utilization(H100, LARGE.parameters),
    "An H100 does {:,.0f} of": round(model.speed(SMALL, H100, 1, "ddp"), -4),
    "these threads {:.0f}.": scale.CPU_FLOPS / SMALL.flops,
    "parameters: {:.0f} GFLOP a second": scale.CPU_FLOPS / 1e9,
    "would save every {:.1f} s": 100 * BY_HAND.total,
    "{} GB for 7 B": scale.rounded(scale.TEXT * scale.TOKENS * LARGE.parameters / 1e9),
    "GB for 7 B: {:.0f} h": scale.TEXT * scale.TOKENS * LARGE.parameters / scale.BPE / 3600,
    "at most {:.0f} GB on each of 8": scale.stacks(LARGE) / 1e9,
    "{:.0f} GB on each GPU at 7 B. With": 2 * LARGE.parameters / 1e9,
    "parameter, {:.0f} GB at 7 B: so": 4 * LARGE.parameters / 1e9,
    "that is {:.1f} ms. The gradient": 1000 * BY_HAND.compute,
    "at 36.5 GB a second: {:.1f} ms": 1000 * BY_HAND.wire,
    "on its way: {:.1f} ms": 1000 * BY_HAND.latency,
    "3.35 TB a second: {:.1f} ms": 1000 * BY_HAND.optimizer,
    "Together {:.1f} ms": 1000 * BY_HAND.total,
    "1,000 GPUs, {:.1f} ms for each": 1000 * model.ring(1000),
    "36 rings of {:.1f} ms": 1000 * model.ring(256),
    "has {:.0f} ms of products": 1000 * model.step(SMALL, H100, 256, "ddp").compute,
    "have {:.1f} s of work": model.step(LARGE, H100, 256, "ddp").compute,
    "needs {:.0f} M tokens a second": model.speed(LARGE, H100, 1000, "hsdp") / 1e6,
    "1/128) is {:.1f}.": 16 * 8.03e9 * (1 / 8 - 1 / 128) / 2**30,
    "The differences are {:.1f} and": scale_runs.STATES["plain"],
    "and {:.1f} GiB": scale_runs.STATES["compiled"],
}


@pytest.mark.parametrize("said", SAID)
def test_a_number_in_a_sentence_is_that_of_the_model(said):
    assert said.format(SAID[said]) in PAGE


def test_the_shapes_have_the_parameters_of_heedfuls_models():
    for shape in (SMALL, LARGE):
        with torch.device("meta"):
            made = GPT(shape.config)
        count = sum(parameter.numel() for parameter in made.parameters())
        assert shape.parameters == pytest.approx(count, rel=1e-3)


def test_the_products_of_a_token_are_those_that_torch_counts():
    sizes = {"vocabulary": 97, "context_length": 24, "width": 40, "layers": 3, "heads": 5}
    config = GPTConfig(**sizes, positions="learned", qk_norm=False)
    with torch.device("meta"):
        made, ids = GPT(config), torch.zeros(2, 24, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            made(ids).logits.sum().backward()
    parameters = sum(p.numel() for p in made.parameters())
    shape = model.Shape("", parameters, 3, 40, 24, 48, 2)
    assert shape.flops == pytest.approx(counter.get_total_flops() / 48, rel=0.02)


@pytest.mark.parametrize("size", [(8, 8), (8, 12), (12, 8), (8, 24), (24, 7), (5, 10)])
def test_the_products_of_muon_are_those_that_torch_counts(size):
    with FlopCounterMode(display=False) as counter:
        orthogonal(torch.randn(1, *size))
    assert model.orthogonal_flops(*size) == counter.get_total_flops()


def test_whole_matrices_are_shared_shape_by_shape():
    one = model.orthogonal_share(LARGE, 1)
    assert one / 8 <= model.orthogonal_share(LARGE, 8) < one / 7
    assert model.orthogonal_share(LARGE, 999) == sum(
        model.orthogonal_flops(*size) for size in model.matrices(LARGE)
    )
    count = sum(rows * columns * n for (rows, columns), n in model.matrices(LARGE).items())
    tables = 2 * 32_000 * 4096  # token table and output
    assert LARGE.parameters == count + tables


def test_a_sum_over_one_machine_takes_what_nccls_formula_says():
    size, gpus = 1e9, 8
    assert model.all_reduce(H100, size, gpus) == size / H100.nvlink * 2 * (gpus - 1) / gpus
    assert model.gather(A100, size, gpus) == size / A100.nvlink * (gpus - 1) / gpus


def test_a_sum_over_four_machines_takes_what_was_measured():
    """Of 4 GiB over 32 B200: 22.05 ms (Bekman, ML engineering), on the same network as here."""
    assert model.all_reduce(H100, 4 * 2**30, 32) == pytest.approx(22.05e-3, rel=0.01)


def test_a_ring_is_as_long_as_its_gpus_and_a_tree_as_high_as_its_machines():
    assert model.ring(8) == pytest.approx(8.4e-6 + 7 * 3.4e-6)
    assert model.ring(1000) == pytest.approx(8.4e-6 + 875 * 3.4e-6 + 124 * 14e-6)
    assert model.tree(8) == pytest.approx(8.4e-6 + 2 * 7 * 4e-6)
    assert model.tree(512) == pytest.approx(8.4e-6 + 2 * (7 * 4e-6 + 6 * 14e-6))


@pytest.mark.parametrize("run", scale_runs.WHOLE, ids=lambda run: f"{run.what[:20]} {run.gpus}")
def test_a_public_run_is_met_within_a_factor(run):
    assert 1 / 1.6 < run.off < 1.6


@pytest.mark.parametrize("run", scale_runs.GROWING, ids=lambda run: f"{run.what} {run.gpus}")
def test_what_more_gpus_lose_is_met(run):
    assert run.off == pytest.approx(1, abs=0.05)


def test_what_more_gpus_lose_would_not_be_met_without_latency(monkeypatch):
    monkeypatch.setattr(model, "EXPOSED", 0)
    assert max(run.off for run in scale_runs.GROWING) > 1.1


def test_the_state_is_what_torchtitan_saw_go_with_more_gpus():
    state = model.STATE * 8.03e9 * (1 / 8 - 1 / 128) / 2**30
    for seen in scale_runs.STATES.values():
        assert state == pytest.approx(seen, rel=0.1)


def test_less_than_a_text_for_each_gpu_cannot_be():
    assert model.step(SMALL, H100, 512, "ddp") is not None
    assert model.step(SMALL, H100, 513, "ddp") is None
    assert model.speed(SMALL, H100, 1000, "hsdp") is None
    assert scale.efficiency(LARGE, 8, "ddp") is None  # no room


def test_hybrid_shards_in_one_machine_are_full_shards():
    for shape in SHAPES:
        assert model.step(shape, H100, 8, "hsdp") == model.step(shape, H100, 8, "fsdp")


def test_the_best_interval_loses_least():
    saving, between = 148.8, 50 * 3600
    tried = np.geomspace(60, 1e6, 2001)
    loss = saving / tried + tried / 2 / between
    assert model.best_interval(saving, between) == pytest.approx(tried[loss.argmin()], rel=0.01)


def test_what_is_lost_is_what_a_simulation_loses():
    saving, between = 148.8, 10 * 3600.0
    interval = model.best_interval(saving, between)
    chance = np.random.default_rng(7)
    lived = chance.exponential(between, 40_000)  # from one failure to the next
    rounds = np.floor(lived / (interval + saving))
    done = rounds.sum() * interval
    spent = lived.sum() + len(lived) * model.RESTART
    assert model.lost(saving, between) == pytest.approx(1 - done / spent, abs=0.015)


def test_sizes_between_two_measured_ones_lie_between_them():
    shares = [model.utilization(A100, size) for size in np.geomspace(5e7, 2e10, 50)]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.448, 0.642)
    assert model.utilization(A100, math.sqrt(125e6 * 356e6)) == pytest.approx((0.448 + 0.516) / 2)
