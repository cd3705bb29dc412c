"""The output, files and errors of the commands."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command_checks import misused, refused

from heedful.cli.main import COMMANDS, run
from heedful.files import load_tensors, read_checked_json, save_tensors, write_checked_json
from heedful.generate import Sampling
from heedful.generate import generate as continuations
from heedful.models import load_model
from heedful.text import load_tokenizer
from heedful.train import read_metrics

TEXT = "".join(f"Bottle {i} of {i * i}: naïve café, 火, 🙂.\n" for i in range(200))
SIZES = ["--context-length", "16", "--width", "24", "--layers", "2", "--heads", "2",
         "--steps", "12", "--batch", "4", "--evaluate-every", "6", "--save-every", "6",
         "--device", "cpu"]  # fmt: skip
SMALL = [*SIZES, "--vocabulary", "300"]


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "bottles.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory, text_file):
    out = tmp_path_factory.mktemp("runs") / "small"
    assert run(["train", str(text_file), "--out", str(out), *SMALL]) == 0
    return out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(command, cli):
    status, output, _ = cli(command, "--help")
    assert (status, "Examples:" in output, f"  heedful {command}" in output) == (0, True, True)


def test_train_writes_a_run(trained):
    names = {str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()}
    state = {"state/recipe.json", "state/tokens.npy", "state/last.safetensors"}
    run = {"config.json", "tokenizer.json", "model.safetensors", "metrics.jsonl", "loss.png"}
    assert state | run <= names
    assert json.loads((trained / "config.json").read_text())["model_type"] == "heedful-gpt"
    modes = {path.stat().st_mode & 0o777 for path in trained.rglob("*.safetensors")}
    assert modes == {(trained / "config.json").stat().st_mode & 0o777}


def test_training_resumes_at_its_last_step(trained, text_file, cli, tmp_path):
    out = tmp_path / "run"
    status, output, _ = cli("train", text_file, "--out", out, *SMALL, "--resume")
    assert status == 0
    number = sum(p.numel() for p in load_model(out).parameters())
    assert f"{number:,} parameters" in output
    assert f" generate {out}" in output
    status, output, _ = cli("train", "--out", out, "--resume", "--steps", "15")
    assert status == 0
    assert "Continuing from step 12" in output
    assert [m["step"] for m in read_metrics(out / "metrics.jsonl") if "loss" in m] == list(
        range(1, 16)
    )


def test_a_refused_run_writes_nothing(cli, tmp_path):
    (tmp_path / "short.txt").write_text("hi")
    out = tmp_path / "deep" / "run"
    refused(cli("train", tmp_path / "short.txt", "--out", out, *SMALL), "more text")
    refused(cli("train", "--out", out, "--resume"), str(out))
    assert not out.exists()
    inside = tmp_path / "run"
    refused(cli("train", tmp_path, "--out", inside, *SMALL), "inside the text folder")
    assert not inside.exists()
    refused(cli("train", tmp_path / "short.txt", "--out", tmp_path / "short.txt/r"), "cannot write")


def test_a_run_is_replaced_only_with_overwrite(trained, text_file, cli, tmp_path):
    out = shutil.copytree(trained, tmp_path / "run")
    before = (out / "model.safetensors").read_bytes()
    refused(cli("train", text_file, "--out", out, *SMALL), "--resume", "--overwrite")
    refused(cli("train", "--out", out, "--resume", "--width", "48"), "width = 48")
    refused(cli("train", "--out", out, "--resume", text_file.parent), "other files")
    assert (out / "model.safetensors").read_bytes() == before
    assert cli("train", text_file, "--out", out, *SMALL, "--overwrite", "--seed", "2")[0] == 0
    assert (out / "model.safetensors").read_bytes() != before


def test_a_refused_overwrite_leaves_the_run_as_it_was(trained, cli, tmp_path):
    out = shutil.copytree(trained, tmp_path / "copy")
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (tmp_path / "short.txt").write_text("too short")
    for wrong in (["--heads", "7"], ["--device", "tpu9"], ["none.txt"], [tmp_path / "short.txt"]):
        refused(cli("train", *wrong, "--out", out, "--overwrite"))
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == files


def test_include_chooses_files_and_resume_keeps_everything(cli, tmp_path):
    folder, out = tmp_path / "notes", tmp_path / "run"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.bin").write_bytes(b"\0\1\2")
    train = ["train", folder, "--out", out, *SMALL, "--include", "*.txt", "--preset", "quick"]
    assert cli(*train)[0] == 0
    (folder / "a.txt").unlink()  # its tokens are in the run
    status, output, _ = cli(*train, "--resume")
    assert status == 0
    assert "are complete" in output
    assert cli("train", "--out", out, "--resume", "--steps", "14")[0] == 0
    refused(cli("train", "--out", out, "--resume", "--include", "*"), "include = '*'")
    refused(cli("train", "--out", out, "--resume", "--preset", "gpt2"), "preset = 'gpt2'")


def test_generate_uses_the_requested_checkpoint(trained, cli, tmp_path):
    out = shutil.copytree(trained, tmp_path / "copy")
    path = out / "state/last.safetensors"
    tensors, about = load_tensors(path)
    tensors["model.norm.weight"] = -3 * tensors["model.norm.weight"]
    save_tensors(path, tensors, about)
    greedy = ["generate", out, "Bottle 7", "--greedy", "--tokens", "20"]
    assert cli(*greedy)[1] != cli(*greedy, "--checkpoint", "last")[1]


def test_settings_come_from_a_file_and_options_win(text_file, cli, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[text]\ntokenizer = "characters"\n[train]\nsteps = 3\n[model]\nwidth = 16\n')
    arguments = [*SMALL[:2], "--layers", "1", "--heads", "2", "--width", "32", "--device", "cpu"]
    status, _, _ = cli("train", text_file, "--out", tmp_path / "r", "--config", path, *arguments)
    assert status == 0
    assert load_model(tmp_path / "r").config.width == 32
    assert load_tokenizer(tmp_path / "r").kind == "characters"
    assert read_metrics(tmp_path / "r/metrics.jsonl")[-1]["step"] == 3


def test_generate_continues_the_prompt(trained, cli):
    greedy = ["generate", trained, "Bottle 7", "--greedy", "--tokens", "60"]
    status, output, _ = cli(*greedy)
    assert status == 0
    assert output.startswith("Bottle 7")
    assert json.loads(cli(*greedy, "--json")[1])["samples"] == [output[len("Bottle 7") : -1]]
    added = output[len("Bottle 7") : -1]
    stop = added[len(added) // 2 :][:2]
    assert cli(*greedy, "--stop", stop)[1] == "Bottle 7" + added[: added.index(stop)] + "\n"


def test_an_empty_prompt_starts_a_new_document(trained, cli):
    greedy = ["generate", trained, "", "--greedy", "--tokens", "9"]
    tokenizer, model = load_tokenizer(trained), load_model(trained)
    chosen = continuations(
        model, tokenizer.encode("\n"), tokens=9, sampling=Sampling(temperature=0)
    )
    expected = tokenizer.decode([int(ids) for ids in chosen])
    assert cli(*greedy)[1] == expected + "\n"
    assert json.loads(cli(*greedy, "--json")[1]) == {"prompt": "", "samples": [expected]}
    positions = json.loads(cli("generate", trained, "", "--probabilities", "2", "--json")[1])
    assert [row["piece"] for row in positions] == ["↵"]
    misused(cli("generate", trained), "give the prompt")


def test_probabilities_are_the_softmax_of_the_logits(trained, cli):
    status, output, _ = cli(
        "generate", trained, "Bottle 7 of", "--probabilities", "4", "--json", "--device", "cpu"
    )
    assert status == 0
    positions = json.loads(output)
    tokenizer, model = load_tokenizer(trained), load_model(trained)
    ids = tokenizer.encode("Bottle 7 of")
    expected = model(torch.tensor([ids])).logits[0].softmax(-1)
    assert [row["position"] for row in positions] == list(range(len(ids)))
    for row, likely in zip(positions, expected, strict=True):
        values, tokens = likely.topk(4)
        assert [n["id"] for n in row["next"]] == tokens.tolist()
        assert [n["probability"] for n in row["next"]] == pytest.approx(values.tolist(), abs=1e-6)
    refused(cli("generate", trained, "Bottle " * 30, "--probabilities", "2"), "context of 16")
    table = cli("generate", trained, "Bottle 7 of", "--probabilities", "2")[1]
    likeliest = positions[0]["next"][0]
    assert f"“{likeliest['piece']}” {100 * likeliest['probability']:.1f} %" in table


def test_the_loss_of_a_text_is_torch_s_cross_entropy(trained, cli):
    text = "Bottle 7 of"
    answer = json.loads(cli("generate", trained, text, "--loss", "--json", "--device", "cpu")[1])
    tokenizer, model = load_tokenizer(trained), load_model(trained)
    ids = torch.tensor(tokenizer.encode(text))
    expected = torch.nn.functional.cross_entropy(model(ids[None]).logits[0, :-1].detach(), ids[1:])
    assert answer["loss"] == pytest.approx(float(expected), abs=1e-5)
    assert answer["perplexity"] == pytest.approx(float(expected.exp()), rel=1e-5)
    assert [token["id"] for token in answer["tokens"]] == ids[1:].tolist()
    table = cli("generate", trained, text, "--loss")[1]
    assert f"{answer['tokens'][0]['loss']:.3f}" in table
    assert f"{answer['loss']:.3f} nats" in table.splitlines()[-1]
    refused(cli("generate", trained, "B", "--loss"), "1 token")
    misused(cli("generate", trained, text, "--loss", "--probabilities", 2), "--probabilities")


def test_a_batch_has_the_ids_of_the_text_and_the_targets_one_later(cli, tmp_path):
    text = "It was a dark and stormy night; the rain fell in torrents."
    (tmp_path / "text").write_text(text)
    arguments = ["--tokenizer", "characters", "--batch", 3, 7, "--seed", 2]
    answer = json.loads(cli("tokenize", "--file", tmp_path / "text", *arguments, "--json")[1])
    letters = sorted(set(text))
    for start, *rows in zip(answer["starts"], answer["inputs"], answer["targets"], strict=True):
        for shift, row in enumerate(rows):
            part = text[start + shift : start + shift + 7]
            assert [letters[token] for token in row] == list(part)
    table = cli("tokenize", text, *arguments)[1]
    assert [table.count(word) for word in ("row ", "inputs", "targets  ")] == [3, 3, 3]
    refused(cli("tokenize", "dark", *arguments), "4 tokens", "at least 8")


def test_plot_writes_only_the_requested_pictures(trained, cli, tmp_path):
    status, output, _ = cli("plot", trained, "Bottle 7", "--out", tmp_path / "p")
    assert (status, output) == (0, f"{tmp_path / 'p' / 'heads.png'}\n")
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["heads.png"]
    every = [word for kind in ("positions", "loss", "scores") for word in ("--only", kind)]
    status, output, _ = cli("plot", trained, "Bottle 7", *every, "--out", tmp_path / "q")
    assert status == 0
    names = {"positions.png", "loss.png", "scores.png"}
    assert {Path(line).name for line in output.splitlines()} == names
    assert {path.name for path in (tmp_path / "q").iterdir()} == names
    refused(cli("plot", trained, "Bottle", "--layers", "2", "--out", tmp_path / "p"), "from 0")
    refused(cli("plot", trained, "Bottle " * 99, "--out", tmp_path / "p"), "context of 16")
    for heads in ("first", "²", "1-", "", "1-0", "0-99999999999"):
        misused(cli("plot", trained, "Bottle", "--heads", heads), "--heads")


def test_pictures_in_a_folder_are_numbered(trained, cli, tmp_path):
    def drawn_names(*arguments):
        output = cli("plot", trained, "Bottle 7", *arguments, "--out", tmp_path)[1]
        return [Path(line).name for line in output.splitlines()]

    assert drawn_names() == ["heads.png"]
    first = (tmp_path / "heads.png").stat()
    assert drawn_names("--only", "heads", "--only", "scores") == ["heads-2.png", "scores-2.png"]
    assert drawn_names() == ["heads-3.png"]
    assert (tmp_path / "heads.png").stat() == first
    assert drawn_names("--overwrite") == ["heads.png"]
    assert (tmp_path / "heads.png").stat() != first


def test_the_suffix_of_out_makes_it_a_file_and_nothing_is_overwritten(trained, cli, tmp_path):
    path = tmp_path / "new" / "of bottles.PDF"
    assert cli("plot", trained, "Bottle", "--out", path)[:2] == (0, f"{path}\n")
    assert path.read_bytes().startswith(b"%PDF")
    path.write_text("mine")
    refused(cli("plot", trained, "Bottle", "--out", path), "--overwrite")
    assert path.read_text() == "mine"
    assert cli("plot", trained, "Bottle", "--out", path, "--overwrite")[0] == 0
    assert path.read_bytes().startswith(b"%PDF")
    (tmp_path / "note").write_text("mine")
    refused(cli("plot", trained, "Bottle", "--out", tmp_path / "note"), ".svg")
    both = ["--only", "heads", "--only", "scores"]
    misused(cli("plot", trained, "Bottle", "--out", tmp_path / "a.png", *both), "--out")
    refused(cli("plot", trained, "Bottle", "--out", tmp_path / "a.jpg"), ".svg")
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == []


def test_options_for_the_style_of_a_picture(trained, cli, tmp_path, drawn):
    look = ["--title", "Seven $", "--scale", "log", "--highest", "0.5", "--size", "12", "--values"]
    path = tmp_path / "a.svg"
    assert cli("plot", trained, "Bottle", "--heads", "1", *look, "--out", path)[0] == 0
    [(blocks, look)] = drawn
    assert blocks[0].heads == [1]
    assert [look[name] for name in ("title", "scale", "highest", "size", "values")] == [
        "Seven $", "log", 0.5, 12, True
    ]  # fmt: skip
    assert ">Seven $<" in path.read_text()  # text is text
    misused(cli("plot", trained, "Bottle", "--highest", "0", "--out", tmp_path), "--highest")
    refused(cli("plot", trained, "Bottle", "--size", "nan", "--out", tmp_path), "size=nan")


def test_a_recording_is_drawn_with_its_text(trained, cli, tmp_path, drawn, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("record", trained, "Bottle 7", "--out", "r.safetensors")[0] == 0
    assert cli("plot", "r.safetensors")[:2] == (0, "pictures/heads.png\n")
    assert cli("plot", trained, "Bottle 7", "--out", "again.png")[0] == 0
    ours, theirs = (blocks for blocks, _ in drawn)
    assert ours[0].queries == theirs[0].queries
    for line, other in zip(ours[0].lines, theirs[0].lines, strict=True):
        np.testing.assert_array_equal(np.stack(line.maps), np.stack(other.maps))
    for more in (["a text"], ["--cut"], ["--only", "loss"]):
        misused(cli("plot", "r.safetensors", *more, "--overwrite"))
    refused(cli("plot", "none.safetensors", "--overwrite"), "none.safetensors")


def test_tokenize(cli, trained, tmp_path):
    text = "naïve 火 🙂"
    status, output, _ = cli("tokenize", text, "--json")
    assert status == 0
    about = json.loads(output)
    assert about["largest"] == max(about["ids"])
    assert about["distinct"] == len(set(about["ids"]))
    assert "vocabulary used" in cli("tokenize", text, "--tokenizer", trained)[1]
    assert cli("tokenize", text, "--tokenizer", "characters")[1].count("\n") >= len(text)
    (tmp_path / "t.txt").write_text(text)
    from_file = json.loads(cli("tokenize", "--file", tmp_path / "t.txt", "--json")[1])
    assert from_file["ids"] == about["ids"]
    words = json.loads(cli("tokenize", "the word", "--tokenizer", "wordpiece", "--json")[1])
    assert (words["pieces"][0], words["pieces"][-1]) == ("[CLS]", "[SEP]")
    refused(cli("tokenize", "a", "--tokenizer", "runs/none"), "runs/none", "cl100k_base")


def test_demo_trains_samples_and_draws(trained, tmp_path, cli, monkeypatch):
    refused(cli("demo", "--out", trained, "--steps", "1"), "another text")
    refused(cli("demo", "--out", tmp_path / "none", "--keep"), "without --keep")
    status, output, _ = cli("demo", "--out", tmp_path / "d", "--steps", "2")
    assert status == 0
    assert "Python language reference" in output
    assert "PSF" in output
    for name in ("heads.png", "scores.png", "positions.png", "loss.png"):
        assert name in output
        assert (tmp_path / "d/pictures" / name).is_file()
    assert f"{tmp_path / 'd/explorer.html'}, 0." in output
    assert (tmp_path / "d/explorer.html").read_text("utf-8").startswith("<!doctype html>")
    assert f"look {tmp_path / 'd'} " in output
    assert "What the GPT writes" in output
    for part in ("_sample", "_pictures"):  # the slowest parts, and the page
        monkeypatch.setattr(f"heedful.cli.demo.{part}", lambda *arguments: [])
    monkeypatch.setattr("heedful.views.explorer.one_file.write", lambda *arguments: (0, ""))
    first = (tmp_path / "d/model.safetensors").stat().st_mtime_ns
    assert cli("demo", "--out", tmp_path / "d", "--keep")[0] == 0
    assert (tmp_path / "d/model.safetensors").stat().st_mtime_ns == first


def changed(directory):
    about = read_checked_json(directory / "config.json")
    about["model"]["width"] = 48
    write_checked_json(directory / "config.json", about)


BREAKS = {
    "no config": (lambda d: (d / "config.json").unlink(), "config.json"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json"),
    "weights cut": (lambda d: os.truncate(d / "model.safetensors", 3000), "damaged or truncated"),
    "weights misfit": (changed, "do not fit"),
}


@pytest.mark.parametrize("case", BREAKS)
def test_a_damaged_run_is_one_clear_line(case, trained, cli, tmp_path):
    change, words = BREAKS[case]
    directory = shutil.copytree(trained, tmp_path / "copy")
    change(directory)
    refused(cli("generate", directory, "Bottle"), words)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--preset quik", "quick"),
        ("--heads 7", "divides the width"),
        ("--tokenizer cl100k_bas", "cl100k_base"),
        ("--device tpu9", "auto, cpu"),
    ],
)
def test_wrong_settings_are_one_clear_line(options, word, cli, text_file, tmp_path):
    out = ["--out", tmp_path / "r", "--device", "cpu"]
    refused(cli("train", text_file, *out, *options.split()), word)
    assert not (tmp_path / "r" / "config.json").exists()


# Arguments, and a word of the error
WRONG_USAGE = {
    "fly": "fly",
    "train": "--out",
    "demo --out=": "an empty name",
    "generate": "RUN",
    "generate a --tokens many": "--tokens",
    "generate a b --checkpoint lst": "best",
    "embed --keep-given": "--analogy",
    "train --out a --window 0": "--window",
    "train --out a --dropout 2": "0.9",
    f"train --out a --window {10**400}": "9223372036854775807",
    f"generate a b --seed {10**30}": "--seed",
    f"translate a b --beams {10**9}": "10000",
    "tokenize": "--file",
}


@pytest.mark.parametrize("typed", WRONG_USAGE)
def test_wrong_usage_is_one_line_and_status_2(typed, cli):
    misused(cli(*typed.split()), WRONG_USAGE[typed], "--help\n")


def test_a_number_that_is_not_finite_is_refused(cli):
    refused(cli("train", "--out", "a", "--learning-rate", "nan"), "learning_rate = nan", "finite")


def test_a_traceback_only_with_debug(cli, tmp_path):
    from heedful.errors import RunError

    refused(cli("generate", tmp_path / "nothing", "hello"))
    with pytest.raises(RunError):
        run(["generate", str(tmp_path / "nothing"), "hello", "--debug"])
