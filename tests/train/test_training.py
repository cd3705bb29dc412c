import dataclasses
import math
import resource

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import write_plan

from heedful.errors import ArgumentError, HeedfulError, SaveError
from heedful.models import GPT, GPTConfig, load_model
from heedful.train import (
    Ended,
    Training,
    TrainSettings,
    Validation,
    open_training,
    prepare_run,
    preset,
)
from heedful.train.batches import BatchIndex, shuffled_pieces, window_starts
from heedful.train.metrics import Metrics, Progress, read_metrics
from heedful.train.optimizers import rate_factor
from heedful.train.presets import PRESETS
from heedful.train.settings import read_toml
from heedful.train.tasks import NextToken

TOKENS = np.tile(np.arange(11, dtype=np.uint16), 60)
SETTINGS = TrainSettings(steps=30, batch=4, evaluate_every=10, save_every=10, warmup=3)


def draw(tokens, context_length, batch, index):
    return NextToken(tokens, tokens[:0], context_length).draw(batch, index)


def training(directory, tokens=TOKENS, **changes):
    (directory / "state").mkdir(exist_ok=True)
    model = GPT(GPTConfig(vocabulary=11, context_length=7, width=12, layers=1, heads=2))
    settings = dataclasses.replace(SETTINGS, **changes)
    return Training(directory, model, NextToken(tokens[:500], tokens[500:], 7), settings)


def test_training_learns_a_repeated_sequence(tmp_path):
    run = training(tmp_path, steps=150, learning_rate=1e-2)
    losses = [event.loss for event in run.events() if isinstance(event, Validation)]
    assert losses[0] == pytest.approx(math.log(11), abs=0.5)
    assert losses[-1] < 0.1


def test_a_step_equals_torchs_own_loop(tmp_path):
    """Two steps written out: accumulated gradients, clipping, AdamW, the learning rate."""
    run = training(tmp_path, steps=2, accumulation=3, clip=0.5, warmup=0, evaluate_every=99)
    model = GPT(run.model.config)
    model.load_state_dict(run.model.state_dict())
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0}],
        lr=1.0,
        betas=(0.9, 0.95),
    )
    for step in range(2):
        optimizer.zero_grad()
        batches = [draw(TOKENS[:500], 7, 4, BatchIndex((1337, step, part))) for part in range(3)]
        inputs, targets = (torch.cat(ids) for ids in zip(*batches, strict=True))
        F.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (0.1 + 0.9 * (1 + math.cos(math.pi * step / 2)) / 2)
        optimizer.step()
    list(run.events())
    for parameter, expected in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, atol=1e-6, rtol=1e-4)


@given(st.integers(2, 200), st.integers(1, 12), st.integers(1, 5))
@settings(max_examples=100)
def test_validation_windows_cover_every_token_once(length, context, batch):
    tokens = np.arange(length, dtype=np.uint16)
    task = NextToken(np.arange(13), tokens, context)
    windows = list(task.in_order(tokens, batch))
    inputs = torch.cat([ids.flatten() for ids, _ in windows])
    targets = torch.cat([ids.flatten() for _, ids in windows])
    assert inputs.tolist() == list(range(length - 1))
    assert targets.tolist() == list(range(1, length))


def test_evaluation_is_the_mean_over_tokens_without_dropout(tmp_path):
    run = training(tmp_path)
    run.model.dropout.p = 0.5
    tokens = TOKENS[:25]
    ids = torch.from_numpy(tokens.astype(np.int64))
    total = 0.0
    run.model.eval()
    for start in range(0, 24, 7):
        stop = min(start + 7, 24)
        logits = run.model(ids[None, start:stop]).logits[0]
        total += F.cross_entropy(logits, ids[start + 1 : stop + 1], reduction="sum").item()
    run.model.train()
    assert run.evaluate(tokens) == pytest.approx(total / 24, rel=1e-6)
    assert run.model.training


def test_batches_are_windows_determined_by_the_key():
    inputs, targets = draw(np.arange(50, dtype=np.uint16), 7, 5, BatchIndex((1, 2, 3)))
    assert inputs.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(7))
    assert not torch.equal(inputs, draw(np.arange(50), 7, 5, BatchIndex((1, 2, 4)))[0])
    lasts = {int(draw(np.arange(9), 7, 1, BatchIndex((seed,)))[1].max()) for seed in range(50)}
    assert lasts == {7, 8}  # the last token can be drawn


def test_early_stop(tmp_path):
    run = training(tmp_path, learning_rate=0.0, steps=1000, patience=2)
    events = list(run.events())
    assert events[-1] == Ended(20, "early")


def test_bfloat16_trains_and_keeps_float32_weights(tmp_path):
    run = training(tmp_path, steps=60, precision="bfloat16", learning_rate=1e-2)
    losses = [event.loss for event in run.events() if isinstance(event, Validation)]
    assert losses[-1] < losses[0] - 1
    assert {p.dtype for p in run.model.parameters()} == {torch.float32}


def run_until(events, step):
    for event in events:
        if getattr(event, "step", 0) == step:
            return


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("spoil", ["weights", "gradient"])
def test_non_finite_numbers_end_the_run_and_are_never_saved(spoil, clip, tmp_path):
    """Also in the step before a save, or if only the gradient is not finite."""
    run = training(tmp_path, clip=clip)
    events = run.events()
    run_until(events, 19)
    if spoil == "weights":
        with torch.no_grad():
            run.model.norm.weight.fill_(float("nan"))
    else:
        run.model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(HeedfulError, match="learning rate that is too high"):
        list(events)
    assert all(p.isfinite().all() for p in rebuilt(tmp_path, run).parameters())


def rebuilt(directory, run):
    from heedful.models import write_model_config

    write_model_config(directory, run.model.config)
    return load_model(directory, checkpoint="last")


def test_a_full_disk_while_saving_keeps_the_last_checkpoint(tmp_path):
    """A limit of file sizes simulates the full disk."""
    run = training(tmp_path)
    events = run.events()
    for event in events:
        if getattr(event, "step", 0) == 12:
            break
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(SaveError, match=r"cannot write .*safetensors") as caught:
            list(events)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert before
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == before
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("stops", [[], [1], [37, 90], [499, 500]])
def test_the_mean_loss_is_that_of_the_latest_tenth_also_when_resumed(tmp_path, stops):
    path, losses = tmp_path / "metrics.jsonl", np.random.default_rng(0).random(600).tolist()
    means, step_before = [], 0
    for stop in (*stops, len(losses)):
        metrics = Metrics(path, Progress(step_before, evaluated=step_before))
        for step in range(step_before, stop):
            means.append(metrics.write_step(step + 1, losses[step], 0.1))
        metrics.write(step=stop, validation_loss=1.0)
        metrics.close()
        step_before = stop
    lines = [line for line in read_metrics(path) if "loss" in line]
    assert [line["mean_loss"] for line in lines] == means
    for number, mean in enumerate(means, start=1):
        assert mean == pytest.approx(np.mean(losses[:number][-min(50, math.ceil(number / 10)) :]))


@pytest.mark.parametrize(
    ("step", "decay", "expected"),
    [(0, "cosine", 0.25), (3, "cosine", 1.0), (4, "constant", 1.0), (4, "linear", 1.0),
     (54, "linear", 0.55), (54, "cosine", 0.55), (104, "cosine", 0.1), (29, "linear", 0.775),
     (3, "trapezoid", 1.0), (52, "trapezoid", 1.0), (78, "trapezoid", 0.55),
     (104, "trapezoid", 0.1)],
)  # fmt: skip
def test_learning_rates(step, decay, expected):
    rates = TrainSettings(steps=104, warmup=4, learning_rate=1.0, decay=decay)
    assert rate_factor(step, rates) == pytest.approx(expected)


def test_presets_and_files_of_settings(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[model]\nwidth = 32\nheads = 4\n[train]\nsteps = 9\n")
    changed = PRESETS["quick"].changed(read_toml(path))
    assert (changed.model.width, changed.train.steps) == (32, 9)
    for content, words in [
        ("steps = 3", "outside a section"),
        ("[model]\nwidht = 3", r"^unknown setting 'widht'; expected width"),
        ("[model]\nsteps = 5", r"unknown setting 'steps'; .* kind of model$"),
        ("[modell]\nwidth = 3", r"unknown section \[modell\]"),
        ("[model", "cannot read settings"),
    ]:
        path.write_text(content)
        with pytest.raises(ArgumentError, match=words):
            PRESETS["quick"].changed(read_toml(path))
    with pytest.raises(ArgumentError, match="quick"):
        preset("quik")


@given(
    pieces=st.integers(1, 20),
    batches=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    seed=st.integers(0, 5),
)
def test_an_epoch_has_each_piece_once_for_any_batch_sizes(pieces, batches, seed):
    pieces_drawn, first = [], 0
    for step, batch in enumerate(batches):
        pieces_drawn += shuffled_pieces(BatchIndex((seed, step, 0), first), batch, pieces)
        first += batch
    assert pieces_drawn == shuffled_pieces(BatchIndex((seed,), 0), first, pieces)
    for number in range(first // pieces):
        assert sorted(pieces_drawn[number * pieces : (number + 1) * pieces]) == [
            (number, piece) for piece in range(pieces)
        ]


def test_epochs_and_seeds_are_shuffled_differently():
    one_epoch, next_epoch = (shuffled_pieces(BatchIndex((7,), first), 50, 50) for first in (0, 50))
    other = shuffled_pieces(BatchIndex((8,), 0), 50, 50)
    orders = [[piece for _, piece in epoch] for epoch in (one_epoch, next_epoch, other)]
    assert len({tuple(order) for order in (*orders, range(50))}) == 4


@given(tokens=st.integers(1, 60), length=st.integers(1, 12), seed=st.integers(0, 20))
def test_windows_of_an_epoch_do_not_overlap_and_omit_little(tokens, length, seed):
    length = min(tokens, length)
    pieces = max(1, tokens // length - 1)
    starts = window_starts(BatchIndex((seed,), 0), pieces, tokens, length, np.random.default_rng(0))
    read = [start + i for start in starts for i in range(length)]
    assert len(set(read)) == len(read)
    assert min(read) >= 0
    assert max(read) < tokens
    assert tokens - len(read) < 2 * length


def test_some_epoch_reads_every_token_and_offsets_differ():
    ids = np.arange(40)
    windows = [draw(ids, 6, 1, BatchIndex((3,), first)) for first in range(200)]
    assert {int(token) for inputs, _ in windows for token in inputs.flatten()} == set(range(39))
    assert {int(token) for _, targets in windows for token in targets.flatten()} == set(ids[1:])
    assert {int(inputs[0, 0]) % 6 for inputs, _ in windows} == set(range(6))


def batches_read(training, monkeypatch):
    """Train to the end; return (first sequence, number of sequences) of each batch read."""
    read, task = [], training.task
    original = type(task).draw

    def record_draw(self, batch, index, rows=slice(None)):
        if len(index.key) > 1:  # other keys are not of the training split
            read.append((index.first, batch))
        return original(self, batch, index, rows)

    with monkeypatch.context() as patch:
        patch.setattr(type(task), "draw", record_draw)
        list(training.events())
    return read


@pytest.mark.parametrize("batch", [3, 5])
def test_training_resumes_at_its_position_in_the_epoch(batch, tmp_path, monkeypatch):
    """Also with another batch size or number of steps."""
    plan = write_plan(tmp_path, steps=8)
    read = batches_read(open_training(plan, prepare_run(plan)), monkeypatch)
    longer = plan.recipe.changed({"train": {"steps": 12, "batch": batch}})
    training = open_training(plan._replace(recipe=longer), prepare_run(plan))
    assert training.restore()
    read += batches_read(training, monkeypatch)
    assert len(read) == 12 * plan.recipe.train.accumulation
    sequences = [n for first, batch in read for n in range(first, first + batch)]
    assert sequences == list(range(len(sequences)))
