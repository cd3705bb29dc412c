"""`heedful describe`: its page, JSON, pictures and errors."""

import json
import re
from functools import partial

import pytest
import torch
from command_checks import misused, refused
from rich.cells import cell_len
from safetensors.torch import save_file

from heedful.models import GPT, BertConfig, GPTConfig, Seq2SeqConfig
from heedful.models.directory import write_model_config

CONFIGS = {
    "gpt": GPTConfig(vocabulary=1000, width=24, heads=4, layers=3, kv_heads=2),
    "bert": BertConfig(vocabulary=1000, width=24, heads=4, layers=3),
    "pairs": Seq2SeqConfig(vocabulary=1000, width=24, heads=4),
}


@pytest.fixture
def cli(cli):
    return partial(cli, "describe")


@pytest.fixture
def run(tmp_path):
    """Make the directory of a run with a configuration but no weights."""

    def make(name="gpt"):
        folder = tmp_path / name
        folder.mkdir()
        write_model_config(folder, CONFIGS[name])
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


def test_a_gpts_page(cli, run, monkeypatch):
    folder = run()
    monkeypatch.setenv("COLUMNS", "72")
    _, page, _ = cli(folder)
    *lines, _ = page.rstrip().splitlines()  # the last is a command to copy, in one line
    assert max(map(cell_len, lines)) <= 72
    number = sum(p.numel() for p in GPT(CONFIGS["gpt"]).parameters())
    assert f"{number:,} parameters" in page.splitlines()[0]
    assert "[B, N, 24] → [B, N, 2, 6] → [B, 2, N, 6]" in page  # two heads of keys
    assert "block, one of 3" in page
    assert sorted(path.name for path in folder.iterdir()) == ["config.json"]


def test_settings_have_the_values_that_the_model_uses(cli, run):
    _, output, _ = cli(run(), "--json")
    settings = {setting["name"]: setting["value"] for setting in json.loads(output)["settings"]}
    model = GPT(CONFIGS["gpt"])
    block = model.blocks[0]
    assert settings["head_width"] == block.attend.head_width
    assert settings["kv_heads"] == block.attend.kv_heads
    assert settings["hidden"] == block.feed.output.in_features
    assert settings["feed_bias"] is (block.feed.output.bias is not None)
    _, page, _ = cli(run("pairs"))
    assert re.search(r"decoder_layers +2 ", page)
    assert not re.search(r"^  \w+ +– ", page, re.M)


def test_json(cli, run, tmp_path):
    out = tmp_path / "one.svg"
    _, output, _ = cli(run("pairs"), "--json", "--out", out)
    result = json.loads(output)
    assert (result["kind"], result["norm_order"]) == ("encoder–decoder", "pre")
    assert result["parameters"] == sum(part["total"] for part in result["parts"])
    assert result["settings"][0]["value"] == 1000
    assert {"step": "memory", "shapes": [["B", "M", 24]], "within": ""} in result["shapes"]
    assert result["picture"] == str(out)


@pytest.mark.parametrize(
    ("name", "suffix", "begins", "options"),
    [
        ("gpt", ".png", b"\x89PNG", []),
        ("pairs", ".svg", b"<?xml", ["--block"]),
        ("bert", ".pdf", b"%PDF", []),
    ],
)
def test_the_suffix_decides_the_picture(cli, run, tmp_path, name, suffix, begins, options):
    out = tmp_path / "made" / f"one{suffix}"
    status, page, _ = cli(run(name), "--out", out, *options)
    assert status == 0
    assert page.rstrip().endswith(str(out))
    assert out.read_bytes().startswith(begins)
    out.write_text("mine")
    refused(cli(tmp_path / name, "--out", out), "already exists", "--overwrite")
    assert out.read_text() == "mine"
    assert cli(tmp_path / name, "--out", out, "--overwrite")[0] == 0
    assert out.read_bytes().startswith(begins)


def test_another_architecture_is_described_but_not_drawn(cli, foreign, tmp_path):
    status, page, _ = cli(foreign)
    assert status == 0
    assert page.startswith("OddForCausalLM: 88 parameters\n")
    assert "3 × odd.layers" in page
    assert "Shapes" not in page
    out = tmp_path / "odd.png"
    refused(cli(foreign, "--out", out), "OddForCausalLM, which cannot be drawn", "leave out --out")
    assert not out.exists()


def test_errors_are_one_clear_line(cli, run, tmp_path):
    folder = run()
    refused(cli(tmp_path / "nowhere"), "nowhere")
    for place in (tmp_path / "one.jpg", tmp_path):
        refused(cli(folder, "--out", place), ".png, .svg or .pdf")
    for option in ("--block", "--overwrite"):
        misused(cli(folder, option), option, "--out")
    (folder / "config.json").write_text("{}")
    refused(cli(folder), "config.json")
