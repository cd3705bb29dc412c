"""A tokenizer's file contains the ranks of its encoding: it needs no cache and no network."""

import json

import numpy as np
import pytest
import tiktoken

from heedful.errors import RunError, TextError
from heedful.text import TiktokenTokenizer, load_tokenizer, open_encoding
from heedful.text.tiktoken_encoding import encoding_data, encoding_from


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """An empty cache, and no network."""

    def fail(*arguments, **options):
        raise ConnectionError("no network here")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr("tiktoken.load.read_file", fail)
    monkeypatch.setattr(tiktoken, "get_encoding", fail)


def round_trip(encoding):
    """Restore the encoding from its data after a round trip through JSON."""
    return encoding_from(encoding.name, json.loads(json.dumps(encoding_data(encoding))))


def test_encoding_data_restores_the_encoding(tiny):
    """Gaps between ranks, and between the ranks and the special token, are restored too."""
    loaded = round_trip(tiny)
    for name in ("name", "_pat_str", "_mergeable_ranks", "_special_tokens", "max_token_value"):
        assert getattr(loaded, name) == getattr(tiny, name)
    assert loaded.encode("the<|end|>", allowed_special="all") == [258, 270]
    ranks = {bytes([byte]): 3 * byte + 2 for byte in range(256)} | {b"ab": 777}
    gaps = tiktoken.Encoding("gaps", pat_str=".+", mergeable_ranks=ranks, special_tokens={})
    assert round_trip(gaps)._mergeable_ranks == ranks
    assert round_trip(gaps).encode("cab") == gaps.encode("cab")


def test_a_saved_encoding_loads_without_cache_and_network(tiny, tmp_path, offline):
    tokenizer = TiktokenTokenizer.compact(tiny, np.array(tiny.encode_ordinary("the thing")))
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    text = "in the thing — never seen: é<|end|>"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.name == "tiny"
    assert loaded.decode(loaded.encode(text)) == text


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-8],
        lambda text: "é" + text,
        lambda text: text[:40] + ("A" if text[40] != "A" else "B") + text[41:],
        lambda text: 7,
    ],
)
def test_damaged_ranks_are_refused(change, tiny, tmp_path):
    TiktokenTokenizer.full(tiny).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    about = json.loads(path.read_text())
    about["carried"]["tokens"] = change(about["carried"]["tokens"])
    del about["crc32"]  # the file's checksum would detect the damage first
    path.write_text(json.dumps(about))
    with pytest.raises(RunError, match=r"cannot read .*tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_an_encoding_is_loaded_by_its_name(named_tiny, tmp_path, monkeypatch):
    assert load_tokenizer("tiny").encode("the<|end|>") == named_tiny.encode_ordinary("the<|end|>")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()  # a directory takes precedence over an encoding's name
    with pytest.raises(RunError, match="no file"):
        load_tokenizer("tiny")


def test_a_saved_cl100k_equals_cl100k(cl100k, data, tmp_path, offline):
    text = (data / "tinyshakespeare.txt").read_text("utf-8")[:200_000] + "東京 🙂 <|endoftext|>"
    book = cl100k.encode_to_numpy((data / "sales_textbook.txt").read_text("utf-8"))
    TiktokenTokenizer.compact(cl100k, book).save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.encoding.encode_ordinary(text) == cl100k.encode_ordinary(text)
    assert (tmp_path / "tokenizer.json").stat().st_size < 700_000
    with pytest.raises(TextError):
        open_encoding("gpt2")
