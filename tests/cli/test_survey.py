"""`heedful heads MODEL --texts …`: head scores over many texts."""

import json

import pytest
import torch
from command_checks import misused, refused
from head_scores_by_definition import over_texts
from test_house import heavy_modules

import heedful
from heedful.head_kinds import MEANS, SCORES

CONTEXT = 32
TEXTS = {
    "one.txt": "day and night, day and night",
    "two.md": "night and day, and day and night again and again. " * 3,
    "three/deep.txt": "and, and, and",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in TEXTS.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "texts"


def test_every_number_is_the_mean_over_all_queries_of_all_texts(night, folder, cli):
    status, output, error = cli("heads", night, "--texts", folder, "--json")
    assert (status, error) == (0, "")
    result = json.loads(output)
    opened = heedful.open(night, device="cpu")
    maps = [[], []]
    for text in TEXTS.values():
        ids = opened.tokenizer.encode(text)
        for start in range(0, len(ids), CONTEXT):
            with torch.inference_mode(), heedful.record(opened.model) as recording:
                opened.model(torch.tensor([ids[start : start + CONTEXT]]))
            for layer, call in enumerate(recording):
                maps[layer].append((call.weights(), ids[start : start + CONTEXT]))
    assert (result["texts"], result["left_out"]) == (len(TEXTS), [])
    assert result["contexts"] == len(maps[0]) > len(TEXTS)
    assert result["tokens"] == sum(len(ids) for _, ids in maps[0])
    assert [(row["layer"], row["head"]) for row in result["heads"]] == [
        (layer, head) for layer in (0, 1) for head in (0, 1, 2)
    ]
    for row in result["heads"]:
        means, chance, queries = over_texts(maps[row["layer"]])
        for name in (*SCORES, *MEANS):
            assert row[name] == pytest.approx(means[name][row["head"]], abs=5e-6), name
        assert row["queries"] == queries
        assert {name: row["chance"][name] for name in chance} == pytest.approx(
            {name: numbers[0] for name, numbers in chance.items()}, abs=5e-6
        )


def test_the_table_states_the_number_of_texts(night, folder, cli):
    more = ["--texts", folder, "--include", "*.txt", "--texts", folder / "two.md"]
    status, output, _ = cli("heads", night, *more, "--sort", "self", "--count", "2")
    assert status == 0
    assert [row.split()[0] for row in output.splitlines()[3:5]] == ["chance", "queries"]
    assert "over 3 texts, " in output


def test_left_out_texts_are_named_and_the_others_are_used(night, folder, cli):
    complete = json.loads(cli("heads", night, "--texts", folder, "--json")[1])
    (folder / "empty.txt").touch()
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "letter.txt").write_text("d")
    status, output, error = cli("heads", night, "--texts", folder, "--json")
    result = json.loads(output)
    assert (status, result["heads"], result["texts"]) == (1, complete["heads"], 3)
    names = ["empty.txt", "latin.txt", "letter.txt"]
    assert [text["path"] for text in result["left_out"]] == [str(folder / name) for name in names]
    lines = error.splitlines()
    assert [line.split(" ")[:3] for line in lines] == [
        ["left", "out:", str(folder / name)] for name in names
    ]
    assert "is empty" in lines[0]
    assert "0xe9" in lines[1]
    assert "one token" in lines[2]


def test_unreadable_texts_give_an_error_and_no_table(night, tmp_path, cli):
    for number in range(12):
        (tmp_path / f"{number:02}.txt").touch()
    status, output, error = cli("heads", night, "--texts", tmp_path)
    assert (status, output) == (1, "")
    lines = error.splitlines()
    assert len(lines) == 10 + 2
    assert lines[10] == "left out: 2 more; --json lists all"
    assert lines[11].startswith("heedful: no text could be read; expected at least one text")
    status, output, error = cli("heads", night, "--texts", tmp_path, "--json")
    result = json.loads(output)
    assert (status, result["heads"], len(result["left_out"])) == (1, [], 12)
    assert error.splitlines() == lines[:11]


@pytest.mark.parametrize(
    "arguments",
    ["a-text", "--file x", "--second x", "--cut", "--sequence 0", "--segments @@", "--over-heads",
     "--context-length 0"],
)  # fmt: skip
def test_options_that_exclude_texts(arguments, night, folder, cli):
    first = arguments.split()[0]
    words = [first] if first.startswith("--") else ["--texts"]
    misused(cli("heads", night, *arguments.split(), "--texts", folder), *words)
    misused(cli("heads", night, "a text", "--include", "*"), "--include")


def test_missing_paths(night, folder, cli):
    refused(cli("heads", night, "--texts", folder / "none"), "none")
    refused(cli("heads", night, "--texts", folder, "--include", "*.html"), "*.html")
    refused(cli("heads", night, "--texts", "-"), "standard input can be read only once")
    misused(cli("heads", night / "model.safetensors", "--texts", folder), "--texts")
    refused(cli("heads", folder / "none", "--texts", folder), "none")
    [[status, *heavy]] = heavy_modules(["heads", str(folder / "none"), "--texts", str(folder)])
    assert status == "1"
    assert "torch" not in heavy
