"""`heedful describe` as a person types it."""

import json
from functools import partial

import pytest
import torch
from rich.cells import cell_len
from safetensors.torch import save_file
from typed import misused, refused

from heedful.cli.places import SUFFIXES
from heedful.models import GPT, BertConfig, GPTConfig, Seq2SeqConfig
from heedful.models.directory import write_description
from heedful.models.huggingface.export import export_model
from heedful.pictures.saving import FORMATS

CONFIGS = {
    "gpt": GPTConfig(vocabulary=1000, width=24, heads=4, layers=3, kv_heads=2),
    "bert": BertConfig(vocabulary=1000, width=24, heads=4, layers=3),
    "pairs": Seq2SeqConfig(vocabulary=1000, width=24, heads=4),
}


@pytest.fixture
def said(said):
    return partial(said, "describe")


@pytest.fixture
def run(tmp_path):
    """The directory of a run that has a description and no weights yet."""

    def make(name="gpt"):
        folder = tmp_path / name
        folder.mkdir()
        write_description(folder, CONFIGS[name])
        return folder

    return make


@pytest.fixture
def foreign(tmp_path):
    """A checkpoint of an architecture that heedful does not build."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    tensors = {f"odd.layers.{i}.mixer.weight": torch.ones(4, 5) for i in range(3)}
    save_file({**tensors, "head.weight": torch.ones(7, 4)}, folder / "model.safetensors")
    config = {"model_type": "odd", "architectures": ["OddForCausalLM"], "hidden_size": 4}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("width", [50, 120])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_fits_the_screen(said, run, name, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    status, page, error = said(run(name))
    assert (status, error) == (0, "")
    *lines, _ = page.rstrip().splitlines()  # the last is a command to copy, in one line
    assert max(map(cell_len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)
    for word in ("Settings", "Parameters", "Shapes", "[B, N, 24]", "scores and weights"):
        assert word in page


def test_a_gpts_page(said, run):
    folder = run()
    _, page, _ = said(folder)
    number = sum(p.numel() for p in GPT(CONFIGS["gpt"]).parameters())
    assert page.startswith(f"GPT, pre-norm (norms before each part): {number:,} parameters\n")
    assert "Transformer blocks." in page
    assert "output layer (shares the token table)" in page
    assert "[B, N, 24] → [B, N, 2, 6] → [B, 2, N, 6]" in page  # two heads of keys
    assert "block, one of 3" in page
    assert sorted(path.name for path in folder.iterdir()) == ["config.json"]


def test_json(said, run, tmp_path):
    out = tmp_path / "one.svg"
    _, output, _ = said(run("pairs"), "--json", "--out", out)
    found = json.loads(output)
    assert (found["kind"], found["norm_order"]) == ("encoder–decoder", "pre")
    assert found["parameters"] == sum(part["total"] for part in found["parts"])
    assert found["settings"][0]["value"] == 1000
    assert {"step": "memory", "shapes": [["B", "M", 24]], "within": ""} in found["shapes"]
    assert found["picture"] == str(out)


@pytest.mark.parametrize(
    ("name", "suffix", "begins"),
    [("gpt", ".png", b"\x89PNG"), ("pairs", ".svg", b"<?xml"), ("bert", ".pdf", b"%PDF")],
)
def test_the_suffix_decides_the_picture(said, run, tmp_path, name, suffix, begins):
    out = tmp_path / "made" / f"one{suffix}"
    status, page, _ = said(run(name), "--out", out)
    assert status == 0
    assert page.rstrip().endswith(str(out))
    assert out.read_bytes().startswith(begins)


def test_nothing_is_overwritten_unless_asked(said, run, tmp_path):
    folder, out = run(), tmp_path / "one.svg"
    out.write_text("mine")
    refused(said(folder, "--out", out), "one.svg is there already", "--overwrite")
    assert out.read_text() == "mine"
    assert said(folder, "--out", out, "--overwrite")[0] == 0
    assert "<svg" in out.read_text()


def test_a_checkpoint_that_transformers_opens(said, tmp_path):
    model = GPT(GPTConfig(vocabulary=50, width=24, heads=4, layers=2))
    export_model(model, tmp_path / "hf")
    before = sorted(path.name for path in (tmp_path / "hf").iterdir())
    _, output, _ = said(tmp_path / "hf", "--json")
    found = json.loads(output)
    assert (found["kind"], found["parameters"]) == (
        "GPT",
        sum(p.numel() for p in model.parameters()),
    )
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == before


def test_another_architecture_is_told_and_not_drawn(said, foreign, tmp_path):
    status, page, _ = said(foreign)
    assert status == 0
    assert page.startswith("OddForCausalLM: 88 parameters\n")
    assert "3 × odd.layers" in page
    assert "Shapes" not in page
    out = tmp_path / "odd.png"
    refused(said(foreign, "--out", out), "OddForCausalLM, which cannot be drawn", "leave out --out")
    assert not out.exists()


def test_what_cannot_be_is_one_clear_line(said, run, tmp_path):
    folder = run()
    refused(said(tmp_path / "nowhere"), "nowhere")
    for place in (tmp_path / "one.jpg", tmp_path):
        refused(said(folder, "--out", place), ".png, .svg or .pdf")
    (folder / "config.json").write_text("{}")
    refused(said(folder), "config.json")


def test_overwrite_needs_the_file_of_a_picture(said, run):
    misused(said(run(), "--overwrite"), "--out")


def test_the_suffixes_are_those_that_can_be_saved():
    assert tuple(f".{suffix}" for suffix in SUFFIXES) == FORMATS
