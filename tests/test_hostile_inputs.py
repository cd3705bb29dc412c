"""Small files that would exhaust memory or time are refused before anything is created."""

import base64
import json
import os
import signal
import zlib

import pytest
import safetensors.torch
import torch
from command_checks import refused
from job_errors import Panic

from heedful.cli.main import run
from heedful.errors import HeedfulError, TextError
from heedful.files import read_json, read_tensors, save_tensors
from heedful.layers import MultiHeadAttention
from heedful.models import (
    GPT,
    Bert,
    BertConfig,
    GPTConfig,
    Seq2Seq,
    Seq2SeqConfig,
    load_model,
    parameters_of,
    write_model_config,
)
from heedful.models.directory import meta_model
from heedful.recorder import record
from heedful.recording import load
from heedful.text import load_tokenizer
from heedful.text.token_file import TokenFile
from heedful.text.tokenizer import encoding_errors
from heedful.text.word_vectors import read_vectors
from heedful.train.metrics import read_metrics
from heedful.train.settings import read_toml

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(autouse=True)
def alarm():
    """End a test that waits for the writer of a pipe, or reads a device."""
    signal.alarm(60)
    yield
    signal.alarm(0)


READERS = {"a.json": read_json, "a.toml": read_toml, "a.csv": read_vectors,
           "tokenizer.json": load_tokenizer, "tokens.npy": TokenFile}  # fmt: skip


@pytest.mark.parametrize("device", ["pipe", "/dev/zero"])
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_read(name, device, tmp_path):
    path = tmp_path / name
    os.mkfifo(path) if device == "pipe" else path.symlink_to(device)
    with pytest.raises(HeedfulError, match="regular"):
        READERS[name](path)


@pytest.mark.parametrize("name", ["a.json", "a.toml", "tokenizer.json"])
def test_deep_and_large_files_are_refused(name, tmp_path):
    path = tmp_path / name
    path.write_text("a = " * name.endswith("toml") + DEEP)
    with pytest.raises(HeedfulError):
        READERS[name](path)
    os.truncate(path, 10**11)  # sparse: it takes no space on the disk
    with pytest.raises(HeedfulError, match="100,000,000,000"):
        READERS[name](path)


def test_a_deep_line_of_metrics_is_a_damaged_line(tmp_path):
    for body in (f'{{"step": 1, "loss": {DEEP}', '{"loss": 1', '["step"'):
        crc = zlib.crc32(body.encode() + b"}")
        (tmp_path / "metrics.jsonl").write_text(f'{body}, "crc32": "{crc:08x}"}}\n')
        with pytest.raises(HeedfulError, match="line 1"):
            read_metrics(tmp_path / "metrics.jsonl")


MODELS = {
    "gpt": GPT(GPTConfig(vocabulary=11, context_length=8, width=12, layers=2, heads=3)),
    "bert": Bert(BertConfig(vocabulary=11, context_length=8, width=12, layers=2, heads=3)),
    "pairs": Seq2Seq(Seq2SeqConfig(vocabulary=11, context_length=8, width=12, layers=1, heads=3)),
}
SIZES = {"layers": 10**7, "vocabulary": 2**32, "hidden": 10**18, "context_length": 10**12,
         "width": 12 * 10**15, "convolution": 10**12, "head_width": 10**12}  # fmt: skip


CASES = [(name, size) for name, model in MODELS.items() for size in SIZES
         if hasattr(model.config, size)]  # fmt: skip


@pytest.mark.parametrize(("name", "size"), CASES)
def test_a_model_that_its_weights_cannot_fill_is_not_created(name, size, tmp_path):
    model = MODELS[name]
    safetensors.torch.save_file(parameters_of(model), tmp_path / "model.safetensors")
    write_model_config(tmp_path, model.config.changed({size: SIZES[size]}))
    for create in (load_model, meta_model):
        with pytest.raises(HeedfulError, match="describes"):
            create(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    if size == "vocabulary":  # needs no memory without weights, and other models are as large
        meta_model(tmp_path)
        return
    with pytest.raises(HeedfulError, match="describes"):
        meta_model(tmp_path)


@pytest.mark.parametrize(
    "entries",
    [{axis: [0, size]} for axis in ("queries", "keys") for size in (6, 10**9, 10**30)]
    + [{"mask": {"causal": 10**30}}, {"mask": {"window": 10**30, "offset": 0}}],
)
def test_a_recording_of_more_tokens_than_its_tensors_is_refused(entries, tmp_path):
    model = MultiHeadAttention(8, 2)
    with record(model) as recording:
        model(torch.randn(1, 5, 8))
    path = recording.save(tmp_path / "r.safetensors")
    tensors, about = read_tensors(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    del about["sums"]
    save_tensors(path, tensors, about)
    assert load(path)[0].shape[1:] == (5, 5)
    about["calls"][0]["tokens"][0] |= entries
    save_tensors(path, tensors, about)
    with pytest.raises(HeedfulError, match="record again"):
        load(path)


def test_tokenizer_files_that_grow_are_refused(tmp_path):
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}
    path = tmp_path / "tokenizer.json"
    for parts in (
        {"normalizer": {"normalizers": [replace] * 9}},
        {"pre_tokenizer": [[replace]] * 9},
    ):
        path.write_text(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}, **parts}))
        with pytest.raises(HeedfulError, match="1,000,000,000 times"):
            load_tokenizer(path)
    zeros = base64.b64encode(zlib.compress(bytes(10**8), 9)).decode()
    for size, tokens, special in ((10**12, "", {}), (3, zeros, {}), (3, "", {"x": 2**31})):
        data = {"pattern": "a", "special": special, "ranks": 3, "tokens": tokens}
        about = {"heedful_tokenizer": 1, "kind": "tiktoken", "encoding": "x"}
        path.write_text(json.dumps({**about, "size": size, "carried": data}))
        with pytest.raises(HeedfulError, match="cannot read"):
            load_tokenizer(path)


@pytest.mark.parametrize("error", [Panic("retry-limit"), ValueError("backtracking")])
def test_errors_of_tokenizer_libraries_are_about_the_text(error):
    with pytest.raises(TextError, match=str(error)), encoding_errors():
        raise error


@pytest.mark.parametrize("name", ["n" * 300, os.fsdecode(b"\xff")])
def test_names_that_no_file_can_have_are_one_clear_line(name, capsys, tmp_path):
    for words in (
        ["describe", name],
        ["tokenize", "--file", name],
        ["train", "--out", name, "--steps", "1"],
    ):
        status = run(words)
        refused((status, *capsys.readouterr()), "too long" if "n" in name else "UTF-8")
