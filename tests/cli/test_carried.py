"""A run trained with an encoding of tiktoken needs neither its cache nor a network afterwards."""

import json

import pytest
import tiktoken
from typed import train

SMALL = ["--tokenizer", "tiny", "--width", "8", "--layers", "1", "--heads", "2", "--batch", "2",
         "--steps", "2", "--context-length", "16", "--device", "cpu"]  # fmt: skip
TEXT = "".join(f"Bottle {i} of the {i * i} thing — naïve café.\n" for i in range(90))


@pytest.fixture(scope="module")
def tiny():
    """The 256 bytes, and two joins."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257}
    pattern = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
    return tiktoken.Encoding("tiny", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


@pytest.fixture
def trained(tiny, tmp_path, monkeypatch):
    """A run; what it was trained with can no longer be had."""
    names = tiktoken.list_encoding_names()
    with monkeypatch.context() as known:
        known.setattr(tiktoken, "list_encoding_names", lambda: [*names, "tiny"])
        known.setattr(tiktoken, "get_encoding", lambda name: tiny)
        out = train(tmp_path, TEXT, *SMALL)

    def fail(*arguments, **options):
        raise ConnectionError("no network here")

    monkeypatch.setattr("tiktoken.load.read_file", fail)
    monkeypatch.setattr("socket.socket.connect", fail)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
    return out


def test_every_command_works_on_the_run_alone(trained, tiny, said, tmp_path):
    text = "Never seen: the theme 火"
    assert said("generate", trained, text, "--tokens", "2", "--greedy")[0] == 0
    about = json.loads(said("tokenize", text, "--tokenizer", trained, "--json")[1])
    assert about["ids"] == tiny.encode_ordinary(text)
    assert said("plot", trained, "the theme", "--out", tmp_path / "p")[0] == 0
    assert said("heads", trained, "the theme")[0] == 0
    assert said("explain", "the theme", "--model", trained)[0] == 0
    assert said("embed", trained, "--similar", "the", "--count", "2")[0] == 0
    assert said("train", "--out", trained, "--resume", "--steps", "3")[0] == 0
