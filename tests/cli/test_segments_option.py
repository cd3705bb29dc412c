"""`heedful heads --segments`."""

import json

import pytest
import torch
from command_checks import misused, refused, train

import heedful
from heedful.cli.segments_option import parse_segments
from heedful.recording import from_attentions

SMALL = ["--context-length", "64", "--width", "24", "--layers", "2", "--heads", "3", "--steps", "2",
         "--batch", "2", "--device", "cpu", "--tokenizer", "characters"]  # fmt: skip
PROMPT = "@@day\nday and night\n@@ \nday?\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    text = "night and day, day and night? \n" * 60
    return train(tmp_path_factory.mktemp("segments"), text, *SMALL)


@pytest.fixture(scope="module")
def recorded(trained, tmp_path_factory):
    opened = heedful.open(trained, device="cpu")
    return opened.record("day and night\nday?\n").save(tmp_path_factory.mktemp("recorded") / "r")


def test_a_marked_text_is_read_without_its_marks(trained, recorded, cli, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)
    status, output, error = cli("heads", trained, "--file", prompt, "--segments", "@@", "--json")
    assert (status, error) == (0, "")
    rows = json.loads(output)
    expected = heedful.load(recorded).segments({"day": slice(0, 14), "2": slice(14, 19)})
    assert [(row["layer"], row["head"], row["from"], row["to"]) for row in rows] == [
        (row.layer, row.head, row.from_, row.to) for row in expected
    ]
    assert [row["share"] for row in rows] == pytest.approx([r.share for r in expected], abs=1e-5)
    ranges = ["heads", recorded, "--segments", "day=0:14,2=14:"]
    from_recording = json.loads(cli(*ranges, "--json")[1])
    assert [row["share"] for row in from_recording] == pytest.approx(
        [row["share"] for row in rows], abs=1e-5
    )
    lines = cli(*ranges)[1].splitlines()
    assert lines[0].split() == ["head", "from", "day", "2", "queries"]
    assert lines[1].split() == ["0.0", "day", "1.00", "–", "14"]
    assert [line.split()[:2] for line in lines[13:15]] == [["chance", "day"], ["chance", "2"]]
    assert lines[15:] == ["", "proof: proved; layout: told"]


def test_sorted_by_a_pair_over_heads_and_as_evidence(recorded, cli):
    ranges = ["heads", recorded, "--segments", "a=0:14,b=14:"]
    rows = json.loads(cli(*ranges, "--sort", "b:a", "--count", "2", "--json")[1])
    assert [(row["from"], row["to"]) for row in rows] == [("b", "a"), ("b", "b")] * 2
    every = json.loads(cli(*ranges, "--json")[1])
    highest = sorted(row["share"] for row in every if (row["from"], row["to"]) == ("b", "a"))
    assert [row["share"] for row in rows[::2]] == highest[:-3:-1]
    lines = cli(*ranges, "--sort", "b:a", "--count", "1", "--evidence")[1].splitlines()
    assert lines[0].split() == ["head", "from", "to", "share", "chance", "queries", "keys"]
    assert lines[1].split()[1:4] == ["b", "a", f"{highest[-1]:.2f}"]
    assert lines[1].split()[5:] == ["5", "14"]
    assert len(lines) == 5
    lines = cli(*ranges, "--over-heads")[1].splitlines()
    assert [line.split()[:2] for line in lines[:5]] == [
        ["layer", "from"], ["0", "a"], ["0", "b"], ["1", "a"], ["1", "b"]
    ]  # fmt: skip


def test_errors_are_one_line(trained, recorded, cli):
    for arguments, word in [
        ([recorded, "--segments", "@@"], "@@"),
        ([recorded, "--segments", "a=0:99"], "19"),
        ([recorded, "--segments", "a=4:4"], "'a'"),
        ([recorded, "--segments", "rest=0:4"], "'rest'"),
        ([recorded, "--segments", "a=0:4", "--sort", "a:b"], "a:rest"),
        ([trained, "day", "--segments", "@@"], "@@"),
        ([trained, "@@a\n@@b\nday", "--segments", "@@"], "'a'"),
    ]:
        refused(cli("heads", *arguments), word)
    for ranges in ("a=0:4,b", "a=0-9", "a=", "a=3:,a=0:2"):
        misused(cli("heads", recorded, "--segments", ranges))
    misused(cli("heads", recorded, "--segments", "a=0:4", "--sort", "previous"), "--sort")
    misused(cli("heads", recorded, "--sort", "a:b"), "--segments")
    misused(cli("heads", recorded, "--over-heads"), "--over-heads")


def test_several_ranges_of_one_name_are_one_segment():
    option = parse_segments(None, None, "frame=0,text=1:3, frame=3:5")
    assert option.ranges == {"frame": [0, 3, 4], "text": [1, 2]}
    assert parse_segments(None, None, "--- a=b").mark == "--- a=b"


def test_a_batch_shows_every_sequence(cli, tmp_path):
    path = from_attentions([torch.rand(2, 2, 6, 6).softmax(-1)] * 2).save(tmp_path / "r")
    rows = json.loads(cli("heads", path, "--segments", "a=0:6", "--json")[1])
    assert [row["sequence"] for row in rows] == [0] * 4 + [1] * 4
    assert cli("heads", path, "--segments", "a=0:6")[1].split()[:3] == ["head", "seq", "from"]
    options = ["heads", path, "--segments", "a=0:6", "--sequence", "1", "--json"]
    assert json.loads(cli(*options)[1]) == rows[4:]
