"""A run that is watched, from the command: its lines, picture and page, and what is refused."""

import re

import pytest
from typed import misused, refused, train

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


def test_it_says_what_is_watched_and_what_shows_it(tmp_path, capsys):
    out = train(tmp_path, TEXT, *SIZES, "--watch", SEEN)
    said = " ".join(capsys.readouterr().out.split())
    assert "watched 16 tokens (9 more are left out) at 5 steps; recordings in" in said
    assert re.findall(r"(plot|look) (\S+)$", said[-400:])[-1] == ("look", str(out))
    tokens = heedful.load(recordings_of(out)[4])[0].tokens
    assert "".join(tokens).replace("·", " ") == SEEN[:16]


def test_plot_draws_how_heads_formed_and_prints_the_highest(watched, said, tmp_path):
    status, output, _ = said("plot", watched)
    assert status == 0
    *lines, last = output.splitlines()
    assert last == str(watched / "pictures/watched.png")
    assert (watched / "pictures/watched.png").is_file()
    assert [line.split()[0] for line in lines] == ["induction", "previous", "sink"]
    assert said("plot", watched, "--only", "watched", "--out", tmp_path / "a.svg")[0] == 0
    assert "induction" in (tmp_path / "a.svg").read_text()
    assert said("plot", watched, "seven", "--out", tmp_path / "map.png")[0] == 0  # as ever


def test_look_opens_every_moment_at_its_step_with_its_losses(watched, said, tmp_path, monkeypatch):
    shown = []
    write = one_file.write

    def kept(path, texts, title, *rest, **options):
        shown.append((texts, title))
        return write(path, texts, title, *rest, **options)

    monkeypatch.setattr(one_file, "write", kept)
    (watched / "watched/step-00000002 (copy).safetensors").touch()  # is none of the run's
    assert said("look", watched, "--html", tmp_path / "page.html")[0] == 0
    [(texts, title)] = shown
    assert title == "run · heedful"
    assert texts.names == ["step 0", "step 2", "step 4"]
    metrics = read_metrics(watched / "metrics.jsonl")
    means = {line["step"]: line["mean_loss"] for line in metrics if "mean_loss" in line}
    checks = {m["step"]: m["validation_loss"] for m in metrics if "validation_loss" in m}
    assert [tuple(moment) for moment in texts.moments] == [
        (0, 0, None, checks[0], 0),
        (1, 2, means[2], checks[0], 0),
        (2, 4, means[4], checks[4], 4),
    ]


def test_what_cannot_be_watched_is_refused(said, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a b\tb a\n" * 20)
    options = ["--pairs", tmp_path / "pairs.tsv", "--out", tmp_path / "run"]
    refused(said("train", *options, "--watch-every", "2"), "watch_every = 2", "--watch")
    refused(said("train", *options, "--watch", ""), "an empty text")
    refused(said("train", *options, "--watch", "a"), "for an encoder–decoder")
    misused(said("train", *options, "--watch", "a", "--watch-file", "b"), "--watch")
    assert not (tmp_path / "run").exists()
    sizes = ["--width", "8", "--layers", "1", "--heads", "2", "--steps", "1", "--validation", "0"]
    assert said("train", *options, *sizes)[0] == 0
    refused(said("train", *options[2:], "--resume", "--watch", "a"), "for an encoder–decoder")


def test_a_run_that_was_not_watched_says_how_it_would_be(night, said):
    refused(
        said("plot", night, "--only", "watched"), "was not watched", "heedful train --watch TEXT"
    )
    resumed = said("train", "--out", night, "--resume", "--watch-every", "2")
    refused(resumed, "watch_every = 2", "--watch")
    misused(said("plot", night), "--file")
