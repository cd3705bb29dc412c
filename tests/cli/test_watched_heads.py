"""`train --watch`: its output, the picture and page of the run, and errors."""

import re

import pytest
from command_checks import misused, refused, train

import heedful
from heedful.train import read_metrics
from heedful.train.watch import recordings_of
from heedful.views.explorer import one_file

TEXT = "seven green bottles, seven green walls. " * 60
SIZES = ["--width", "12", "--heads", "3", "--layers", "2", "--context-length", "16",
         "--tokenizer", "characters", "--steps", "4", "--device", "cpu"]  # fmt: skip
SEEN = "seven seven green bottles"


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    (folder / "seen.txt").write_text(SEEN)
    options = ["--watch-file", str(folder / "seen.txt"), "--watch-every", "2"]
    return train(folder, TEXT, *SIZES, *options)


def test_watching_is_reported_with_the_commands_that_show_it(tmp_path, capsys):
    out = train(tmp_path, TEXT, *SIZES, "--watch", SEEN)
    output = " ".join(capsys.readouterr().out.split())
    assert "watched 16 tokens (9 more are left out) at 5 steps; recordings in" in output
    assert re.findall(r"(plot|look) (\S+)$", output[-400:])[-1] == ("look", str(out))
    tokens = heedful.load(recordings_of(out)[4])[0].tokens
    assert "".join(tokens).replace("·", " ") == SEEN[:16]


def test_plot_draws_scores_over_steps_and_prints_the_highest(watched, cli, tmp_path):
    status, output, _ = cli("plot", watched)
    assert status == 0
    *lines, last = output.splitlines()
    assert last == str(watched / "pictures/watched.png")
    assert (watched / "pictures/watched.png").is_file()
    assert [line.split()[0] for line in lines] == ["induction", "previous", "sink"]
    assert cli("plot", watched, "--only", "watched", "--out", tmp_path / "a.svg")[0] == 0
    assert "induction" in (tmp_path / "a.svg").read_text()
    assert cli("plot", watched, "seven", "--out", tmp_path / "map.png")[0] == 0


def test_look_shows_each_recording_with_its_step_and_losses(watched, cli, tmp_path, monkeypatch):
    pages = []
    write = one_file.write

    def store_and_write(path, texts, title, *rest, **options):
        pages.append((texts, title))
        return write(path, texts, title, *rest, **options)

    monkeypatch.setattr(one_file, "write", store_and_write)
    (watched / "watched/step-00000002 (copy).safetensors").touch()  # not a file of the run
    assert cli("look", watched, "--html", tmp_path / "page.html")[0] == 0
    [(texts, title)] = pages
    assert title == "run · heedful"
    assert texts.names == ["step 0", "step 2", "step 4"]
    metrics = read_metrics(watched / "metrics.jsonl")
    means = {line["step"]: line["mean_loss"] for line in metrics if "mean_loss" in line}
    checks = {m["step"]: m["validation_loss"] for m in metrics if "validation_loss" in m}
    assert [tuple(moment) for moment in texts.training_steps] == [
        (0, 0, None, checks[0], 0),
        (1, 2, means[2], checks[0], 0),
        (2, 4, means[4], checks[4], 4),
    ]


def test_watching_pairs_is_refused(cli, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b\tb a\n" * 20)
    options = ["--pairs", tmp_path / "pairs.tsv", "--out", tmp_path / "run"]
    refused(cli("train", *options, "--watch-every", "2"), "watch_every = 2", "--watch")
    refused(cli("train", *options, "--watch", ""), "an empty text")
    refused(cli("train", *options, "--watch", "a"), "for an encoder–decoder")
    misused(cli("train", *options, "--watch", "a", "--watch-file", "b"), "--watch")
    assert not (tmp_path / "run").exists()
    sizes = ["--width", "8", "--layers", "1", "--heads", "2", "--steps", "1", "--validation", "0"]
    assert cli("train", *options, *sizes)[0] == 0
    refused(cli("train", *options[2:], "--resume", "--watch", "a"), "for an encoder–decoder")


def test_a_run_without_watch_is_refused(night, cli):
    refused(
        cli("plot", night, "--only", "watched"),
        "was not trained with --watch",
        "heedful train --watch TEXT",
    )
    resumed = cli("train", "--out", night, "--resume", "--watch-every", "2")
    refused(resumed, "watch_every = 2", "--watch")
    misused(cli("plot", night), "--file")
