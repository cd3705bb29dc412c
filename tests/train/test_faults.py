"""Damaged and foreign files of a run are refused, and interrupted work can be completed."""

import json
import os
import random
import re
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
from small_runs import outcome, recipe

from heedful.errors import HeedfulError, RunError, SaveError
from heedful.files import load_tensors, save_tensors
from heedful.models import load_model
from heedful.text import CharacterTokenizer, TokenFile, load_tokenizer
from heedful.train import Step, new_plan, open_training, read_metrics, run_directory
from heedful.train.events import Noticed
from heedful.train.plan import read_plan
from heedful.train.run import begin, events, prepare_run, replace
from heedful.train.run_directory import lock_run

LINES = [f"{i} green bottles on the wall, {i * i} of them\n" for i in range(100, 160)]
STEPS = 12


def plan_of(directory, lines=LINES, **train):
    changes = {"steps": STEPS, "evaluate_every": 4, "save_every": 3, **train}
    directory.mkdir(exist_ok=True)
    (directory / "text.txt").write_text("".join(lines))
    return new_plan(directory / "run", [str(directory / "text.txt")], recipe(**changes))


def train_run(plan, prepare=begin, resume=False):
    """Train a plan as `heedful train` does, and return the events."""
    with lock_run(plan.directory):
        training = open_training(plan, prepare(plan))
        if resume:
            training.restore()
        return list(events(plan, training))


def longer(plan, steps):
    return plan._replace(recipe=plan.recipe.changed({"train": {"steps": steps}}))


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    plan = plan_of(tmp_path_factory.mktemp("complete"))
    train_run(plan)
    return plan


def numbers(tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}


READERS = {
    "config.json": lambda d: load_model(d).config,
    "tokenizer.json": lambda d: load_tokenizer(d).encode("12 green"),
    "model.safetensors": lambda d: numbers(load_model(d).state_dict()),
    "metrics.jsonl": lambda d: read_metrics(d / "metrics.jsonl"),
    "state/recipe.json": lambda d: read_plan(d).recipe,
    "state/tokens.npy": lambda d: TokenFile(d / "state/tokens.npy").ids.tolist(),
    "state/last.safetensors": lambda d: numbers(load_tensors(d / "state/last.safetensors")[0]),
}


@pytest.mark.parametrize("fault", ["flipped", "cut"])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_refused_or_the_same(name, fault, complete, tmp_path):
    """Flip a bit of each of 60 bytes, including both ends, or truncate the file at each of them."""
    directory = tmp_path / "run"
    shutil.copytree(complete.directory, directory)
    path, expected = directory / name, READERS[name](directory)
    content, rng = path.read_bytes(), random.Random(name)
    inner = [rng.randrange(len(content)) for _ in range(20)]
    for position in [*range(20), *inner, *range(len(content) - 20, len(content))]:
        flipped = bytes([content[position] ^ 1 << rng.randrange(8)])
        path.write_bytes(
            content[:position] + (flipped + content[position + 1 :] if fault == "flipped" else b"")
        )
        try:
            result = READERS[name](directory)
        except HeedfulError:
            continue
        is_prefix = name == "metrics.jsonl" and result == expected[: len(result)]
        assert result == expected or is_prefix, f"{name}, {position} of {len(content)}"


def test_files_are_those_of_safetensors(tmp_path):
    path = tmp_path / "t.safetensors"
    tensors = {
        "b": torch.randn(3, 5),
        "a": torch.arange(7),
        "c": torch.randn(2).bfloat16(),
        "one": torch.tensor(2.5),
        "é": torch.zeros(0, 4, dtype=torch.bool),
        "turned": torch.randn(2, 3).T,
    }
    save_tensors(path, tensors, {"step": 3})
    loaded, about = load_tensors(path)
    assert about == {"step": 3}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    reference = safetensors.torch.save(contiguous, metadata)
    content = path.read_bytes()
    assert len(content) == len(reference)
    (length,) = np.frombuffer(content[:8], "<u8")
    assert json.loads(content[8 : 8 + length]) == json.loads(reference[8 : 8 + length])
    assert content[8 + length :] == reference[8 + length :]


def edit_by_hand(path, *changes):
    """Edit a file as documented: remove its last entry (the checksum) and the comma before it."""
    text, entries = re.subn(r',\n  "crc32": "[0-9a-f]{8}"\n\}\n$', "\n}\n", path.read_text())
    assert entries == 1
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)


def test_a_run_is_edited_by_hand_as_documented(complete, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(complete.directory, directory)
    change = ('"context_length": 16', '"context_length": 12')
    config, recipe = directory / "config.json", directory / "state/recipe.json"
    config.write_text(config.read_text().replace(*change))
    with pytest.raises(RunError, match=r"edit by hand, remove the last entry, crc32$"):
        load_model(directory)
    edit_by_hand(config)
    assert '"tokens_crc32": "' in config.read_text().splitlines()[-2]  # eight digits at the end
    assert load_model(directory).config.context_length == 12
    config.write_text(config.read_text().replace(*change[::-1]))
    assert load_model(directory).config == load_model(complete.directory).config
    edit_by_hand(recipe, (f'"steps": {STEPS}', f'"steps": {STEPS + 2}'))
    plan = read_plan(directory)
    assert plan.recipe.train.steps == STEPS + 2
    assert any(isinstance(event, Step) for event in train_run(plan, prepare_run, True))


def test_a_tokenizer_of_another_run_is_refused(complete, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(complete.directory, directory)
    characters = CharacterTokenizer.train(["".join(LINES).replace("g", "G")])
    assert characters.size == load_tokenizer(directory).size
    characters.save(directory)
    with pytest.raises(RunError, match=r"tokenizer.json does not belong to the run that"):
        load_tokenizer(directory)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A run on another text of the same characters."""
    plan = plan_of(tmp_path_factory.mktemp("other"), LINES[::-1])
    train_run(plan)
    return plan


@pytest.mark.parametrize("name", sorted({*READERS} - {"tokenizer.json"}))
def test_a_file_of_another_run_of_the_same_shapes_is_refused(name, complete, other, tmp_path):
    """Each file is intact, and its checksum is right."""
    directory = tmp_path / "run"
    shutil.copytree(complete.directory, directory)
    shutil.copy(other.directory / name, directory / name)
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(
        RunError, match=r"does not belong to the run that .*describes|line 1 of .*metrics"
    ):
        train_run(longer(read_plan(directory), STEPS + 2), prepare_run, True)
    if name in ("config.json", "model.safetensors"):
        with pytest.raises(RunError, match=r"model.safetensors does not belong to the run"):
            load_model(directory)
    assert {path: path.read_bytes() for path in files} == files


def test_weights_of_another_program_open_and_the_same_run_twice_is_one(complete, tmp_path):
    plan = plan_of(tmp_path)
    train_run(plan)
    weights = plan.directory / "model.safetensors"
    assert weights.read_bytes() == (complete.directory / "model.safetensors").read_bytes()
    tensors = {name: tensor + 1 for name, tensor in load_tensors(weights)[0].items()}
    safetensors.torch.save_file(tensors, weights)
    assert torch.equal(load_model(plan.directory).norm.weight, tensors["norm.weight"])


@pytest.mark.parametrize("nth_move", [1, 3])
def test_a_killed_replacement_leaves_no_mixture_and_can_be_repeated(
    nth_move, complete, other, tmp_path, monkeypatch
):
    """The weights of the old run are removed, and a mixture of both runs is refused."""
    plan = plan_of(tmp_path, LINES[::-1])
    shutil.copytree(complete.directory, plan.directory)
    count, rename = iter(range(1, 99)), os.replace

    def interrupted_rename(source, target):
        is_moved = run_directory.FRESH in str(source) and run_directory.FRESH not in str(target)
        if is_moved and next(count) == nth_move:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", interrupted_rename)
    with pytest.raises(KeyboardInterrupt):
        train_run(plan, replace)
    monkeypatch.undo()
    with pytest.raises(RunError, match="no file"):
        load_model(plan.directory)
    if nth_move > 1:
        with pytest.raises(RunError, match="does not belong to the run"):
            read_plan(plan.directory)
    train_run(plan, replace)
    assert outcome(plan.directory) == outcome(other.directory)
    assert not list(plan.directory.rglob(".*"))
    assert not (plan.directory / run_directory.FRESH).exists()


def test_lost_lines_of_metrics_are_refused_and_training_resumes_without_them(complete, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(complete.directory, directory)
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"step": 11, "loss"' not in line))
    plan = longer(read_plan(directory), 31)
    with pytest.raises(RunError, match=r"a line before it is lost.* remove the file"):
        train_run(plan, prepare_run, True)
    path.unlink()
    run_events = train_run(plan, prepare_run, True)
    [message] = [event.message for event in run_events if isinstance(event, Noticed)]
    assert "lost" in message
    losses = {line["step"]: line for line in read_metrics(path) if "loss" in line}
    assert [*losses] == [*range(13, 32)]
    assert losses[31]["mean_loss"] == pytest.approx(
        np.mean([losses[i]["loss"] for i in range(28, 32)])
    )


FOREIGN_FILES = {
    "config.json": '{"model_type": "llama"}',
    "model.safetensors": "weights",
    "tokenizer.json": "{}",
    "metrics.jsonl": "",
    "state/tokens.npy": "ids",
    "state/mine.txt": "notes",
}


@pytest.mark.parametrize("prepare", [begin, replace])
@pytest.mark.parametrize("name", FOREIGN_FILES)
def test_files_that_no_run_has_written_are_neither_replaced_nor_removed(name, prepare, tmp_path):
    plan = plan_of(tmp_path)
    path = plan.directory / name
    path.parent.mkdir(parents=True)
    path.write_text(FOREIGN_FILES[name])
    with pytest.raises(SaveError, match=r"not part of a heedful run.* choose another --out"):
        train_run(plan, prepare)
    assert [file for file in plan.directory.rglob("*") if file.is_file()] == [path]
    assert path.read_text() == FOREIGN_FILES[name]
