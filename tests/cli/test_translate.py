"""Encoder–decoders: training on pairs, translating, and drawing the three attentions."""

import json
import math
import re

import numpy as np
import pytest
import torch
from command_checks import misused, refused
from crossing import cross_steps

from heedful.cli.main import run
from heedful.models import load_model
from heedful.text import load_tokenizer
from heedful.train import read_metrics, read_plan
from heedful.translate import Search, translate

LINES = "".join(f"{n} plus {n % 7}\t{n + n % 7}\n" for n in range(10, 90))
SMALL = ["--context-length", "16", "--width", "16", "--layers", "1", "--heads", "2",
         "--steps", "12", "--batch", "8", "--evaluate-every", "6", "--save-every", "6",
         "--device", "cpu", "--tokenizer", "characters"]  # fmt: skip


@pytest.fixture(scope="module")
def tsv(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "sums.tsv"
    path.write_text(LINES)
    return path


@pytest.fixture(scope="module")
def trained(tsv, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "sums"
    options = [*SMALL, "--decoder-layers", "2", "--no-shared"]
    assert run(["train", "--pairs", str(tsv), "--out", str(out), *options]) == 0
    return out


def test_training_on_pairs_prints_its_plan_and_resumes(cli, tsv, tmp_path):
    out = tmp_path / "run"
    status, output, _ = cli("train", "--pairs", tsv, "--out", out, *SMALL)
    assert status == 0
    assert json.loads((out / "config.json").read_text())["model_type"] == "heedful-seq2seq"
    assert load_model(out).config.vocabulary == load_tokenizer(out).size + 2
    assert read_plan(out).preset == "pairs"
    number = sum(p.numel() for p in load_model(out).parameters())
    assert re.search(rf"{number:,} parameters: 1 \+ 1 blocks", output)
    assert "72 to train on, 8 to validate on" in " ".join(output.split())
    assert f'translate {out} "89 plus 5"' in output
    status, output, _ = cli("train", "--pairs", tsv, "--out", out, "--resume", "--steps", "15")
    assert status == 0
    assert "Continuing from step 12" in output
    steps = [m["step"] for m in read_metrics(out / "metrics.jsonl") if "loss" in m]
    assert steps == list(range(1, 16))
    again = ("train", "--out", out, "--resume")
    refused(cli(*again, "--pairs", "dates"), "other files (dates)")
    refused(cli(*again, "--decoder-layers", "3"), "decoder_layers = 3")
    refused(cli(*again, "--qk-norm"), "unknown setting 'qk_norm'")
    refused(cli("train", "--pairs", tsv, "--out", out, *SMALL), "already holds a run")


def test_the_embedded_dates_train_by_their_own_preset(cli, tmp_path):
    out = tmp_path / "dates"
    assert cli("train", "--pairs", "dates", "--out", out, "--steps", "2", "--width", "8")[0] == 0
    plan = read_plan(out)
    assert (plan.preset, plan.sources, plan.recipe.text.tokenizer) == ("dates", (), "characters")
    status, output, _ = cli("translate", out, "the 3rd of May 1987", "--beams", "2")
    assert status == 0
    assert output.endswith("\n")
    refused(cli("demo", "--out", out, "--steps", "1"), "another text")


def test_translate_gives_the_best_target_of_each_line(trained, cli, tmp_path):
    model, tokenizer = load_model(trained), load_tokenizer(trained)
    lines = ["12 plus 5", "7 plus 77", "9"]
    translations = translate(model, [tokenizer.encode(line) for line in lines], Search(beams=3))
    expected = [[tokenizer.decode(target.ids) for target in targets] for targets in translations]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    status, output, _ = cli("translate", trained, "--file", tmp_path / "lines.txt", "--beams", "3")
    assert status == 0
    assert output.splitlines() == [texts[0] for texts in expected]
    output = cli("translate", trained, "\n".join(lines), "--beams", "3", "--json")[1]
    answers = [json.loads(line) for line in output.splitlines()]
    assert [answer["source"] for answer in answers] == lines
    assert [[target["text"] for target in answer["targets"]] for answer in answers] == expected
    assert answers[0]["targets"][0]["score"] == pytest.approx(translations[0][0].score, abs=1e-5)
    status, output, _ = cli("translate", trained, lines[0], "--beams", "3", "--all")
    assert len(output.splitlines()) == 1 + len(expected[0])
    assert "log-probability" in output


def test_blank_lines_stay_blank(trained, cli, tmp_path):
    path = tmp_path / "sums.txt"
    refused(cli("translate", trained, "9\x0b9"), "U+000B")  # does not separate lines
    path.write_text(" 11 plus 4\t\n\n  \n12 plus 5\r\n\n" + "13 plus 6\n" * 40 + "\n")
    status, output, _ = cli("translate", trained, "--file", path)
    assert status == 0
    alone = [cli("translate", trained, f"{n} plus {n % 7}")[1] for n in (11, 12, 13)]
    assert output == f"{alone[0]}\n\n{alone[1]}\n{alone[2] * 40}\n"
    data = [json.loads(line) for line in cli("translate", trained, "--file", path, "--json")[1]
            .splitlines()]  # fmt: skip
    assert [bool(line["targets"]) for line in data] == [bool(line["source"]) for line in data]
    assert len(data) == 46


def test_plot_draws_the_three_attentions_of_the_translation(trained, cli, tmp_path, drawn):
    source = "12 plus 5"
    assert cli("plot", trained, source, "--out", tmp_path)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["heads.png"]
    [(blocks, _)] = drawn
    assert [block.heading.partition(":")[0] for block in blocks] == [
        "encoder", "decoder", "cross-attention",
    ]  # fmt: skip
    encoder, decoder, cross = blocks
    assert cross.axes == ("queries (target)", "keys (source)")
    assert [line.name for line in cross.lines] == ["layer 0", "layer 1"]
    model, tokenizer = load_model(trained), load_tokenizer(trained)
    ids = tokenizer.encode(source)
    target = translate(model, [ids])[0][0].ids
    begun = torch.tensor([[model.config.begin, *target]])[:, :16]
    bare = [name.rstrip("₀₁₂₃₄₅₆₇₈₉") for name in cross.keys]
    assert bare == [*"12·plus·5", "■"]
    assert len(set(cross.keys)) == len(cross.keys) == len(encoder.queries)
    assert len(cross.queries) == len(decoder.keys) == begun.shape[1]
    layers = cross_steps(model, torch.tensor([[*ids, model.config.end]]), begun)
    expected = [weights for steps in layers for weights in steps.weights[0].detach().numpy()]
    ours = [values for line in cross.lines for values in line.maps]
    for weights, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(weights, other, atol=1e-6, rtol=1e-4)
    hidden = np.ma.getmaskarray(decoder.lines[0].maps[0])
    np.testing.assert_array_equal(hidden, np.tri(len(hidden)) == 0)
    alone = tmp_path / "cross.svg"
    only = ["--attention", "cross", "--heads", "0"]
    assert cli("plot", trained, source, *only, "--out", alone)[0] == 0
    assert [block.heading for block in drawn[1][0]] == [cross.heading]
    refused(cli("plot", trained, source, "--second", "5", "--out", alone.parent / "a"), "second")
    refused(cli("plot", trained, source, "--layers", "2", "--out", alone.parent / "a"), "from 0")


def test_cut_reads_the_beginning_of_a_source(trained, cli):
    status, output, error = cli("translate", trained, "1" * 19, "--cut")
    assert status == 0
    assert output == cli("translate", trained, "1" * 15)[1]
    assert error.startswith("the text is cut: 16 of its 20 tokens are read\n")  # with the end token


def test_texts_that_cannot_be_translated_are_one_clear_line(trained, cli):
    refused(cli("translate", trained, "12 × 5"), "'×' (U+00D7) at position 3", "one of the")
    refused(cli("translate", trained, "1 plus 2\n1 ÷ 2"), "line 2:", "'÷'")
    refused(cli("translate", trained, "1" * 16), "17 tokens", "context of 16", "--cut")
    misused(cli("translate", trained, "1", "--beams", "0"), "--beams")


def test_wrong_pairs_and_settings_are_one_clear_line(cli, tsv, tmp_path):
    out = tmp_path / "run"

    def train(*arguments):
        return cli("train", "--out", out, *arguments, *SMALL)

    (tmp_path / "typo.toml").write_text("[model]\nwidht = 3\n")
    for arguments, *words in [
        (["--pairs", tsv, "--preset", "quick"], "quick", "pairs"),
        ([tsv, "--preset", "dates"], "dates", "--pairs"),
        (["--pairs", tsv, "--qk-norm"], "qk_norm"),
        ([tsv, "--decoder-layers", "2"], "decoder_layers"),
        (["--pairs", tsv, "--config", tmp_path / "typo.toml"], "widht", "width"),
    ]:
        refused(train(*arguments), *words)
    assert not out.exists()
    misused(train(tsv, "--pairs", tsv), "FILES")
    misused(train("--pairs", tsv, "--include", "*.tsv"), "--include")


def test_a_warning_if_two_targets_are_nearly_as_probable(trained, cli):
    for source in ("1 plus 2", "1" * 15):
        answer = json.loads(cli("translate", trained, source, "--json")[1])
        best, second = (target["log_probability"] for target in answer["targets"][:2])
        warning = cli("translate", trained, source)[2]
        assert ("uncertain" in warning) == (second - best >= math.log(0.1))
        assert cli("translate", trained, source, "--beams", 1)[2] == ""
