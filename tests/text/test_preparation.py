import io
import sys

import numpy as np
import pytest

from heedful.errors import ArgumentError, TextError
from heedful.text import (
    StringSource,
    TokenizerChoice,
    open_source,
    preparation,
    prepare,
)

TEXT = "The thing — the other thing: in, the end.\n" * 400


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(StringSource.pieces, "__defaults__", (700,))
    monkeypatch.setattr(preparation.FileSource.pieces, "__defaults__", (700,))


@pytest.fixture(params=range(4), ids=["characters", "bpe", "compact", "whole"])
def choice(request, named_tiny):
    return [
        lambda: TokenizerChoice("characters"),
        lambda: TokenizerChoice("bpe", vocabulary=300),
        lambda: TokenizerChoice("tiny"),
        lambda: TokenizerChoice("tiny", compact=False),
    ][request.param]()


def test_the_file_has_all_ids_of_the_text(choice, tmp_path):
    tokenizer, tokens = prepare(StringSource(TEXT), choice, tmp_path / "new" / "tokens.npy")
    assert tokens.ids.tolist() == tokenizer.encode(TEXT)
    assert tokenizer.decode_bytes(tokens.ids) == TEXT.encode()
    assert tokens.ids.dtype == np.uint16
    assert tokens.path == tmp_path / "new" / "tokens.npy"
    assert len(tokens.validation) == len(tokens) - int(len(tokens) * 0.9)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tokens.npy"]


def test_standard_input_gives_the_same_ids(choice, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    tokenizer, tokens = prepare(open_source(["-"]), choice, tmp_path / "piped.npy")
    expected_tokenizer, expected = prepare(StringSource(TEXT), choice, tmp_path / "whole.npy")
    assert np.array_equal(tokens.ids, expected.ids)
    assert tokenizer.size == expected_tokenizer.size
    assert {path.name for path in tmp_path.iterdir()} == {"piped.npy", "whole.npy"}


def test_a_failed_preparation_leaves_the_earlier_file(choice, tmp_path):
    out = tmp_path / "out"
    prepare(StringSource("what was there"), TokenizerChoice("characters"), out / "t.npy")
    content = (out / "t.npy").read_bytes()
    bad = tmp_path / "bad.txt"
    bad.write_bytes(TEXT.encode() + b"\xff")
    with pytest.raises(TextError, match=f"position {len(TEXT.encode()):,}"):
        prepare(open_source([bad]), choice, out / "t.npy")
    assert (out / "t.npy").read_bytes() == content
    assert [path.name for path in out.iterdir()] == ["t.npy"]


def test_more_than_65536_rows_take_four_bytes(tmp_path):
    text = "".join(map(chr, range(0x10000, 0x10000 + 65_537)))
    tokenizer, tokens = prepare(StringSource(text), TokenizerChoice("characters"), tmp_path / "t")
    assert tokenizer.size == 65_537
    assert tokens.ids.dtype == np.uint32
    assert int(tokens.ids[-1]) == 65_536


def test_ids_are_in_order_and_few_pieces_are_in_memory():
    drawn, reports = [], []

    class Numbers(StringSource):
        def pieces(self):
            for piece in map(str, range(500)):
                drawn.append(piece)
                yield piece

    def lengths(completed, total):
        reports.append(completed)

    encoded = preparation._encode_pieces(lambda piece: [int(piece)], Numbers("all"), lengths)
    for number, ids in enumerate(encoded):
        assert ids == [number]
        assert len(drawn) <= number + 2 * preparation._THREADS
    assert reports == list(np.cumsum([len(piece) for piece in drawn]))


def test_a_sample_covers_the_text_evenly():
    text = "".join(f"{number:05d} " for number in range(20_000))
    pieces = list(preparation.sample(StringSource(text), size=12_000))
    assert 11_000 < sum(map(len, pieces)) < 13_000
    firsts = [int(piece.split()[0]) for piece in pieces]
    assert len(firsts) > 100
    assert max(np.diff(firsts)) < 200
    assert "".join(preparation.sample(StringSource(text), size=10**9)) == text


@pytest.mark.parametrize("fields", [{"name": "bpee"}, {"name": ""}, {"vocabulary": 255}])
def test_an_invalid_choice_is_refused(fields):
    with pytest.raises(ArgumentError):
        TokenizerChoice(**fields)


def test_the_textbook_in_cl100k(data, cl100k, tmp_path):
    source = open_source([data / "sales_textbook.txt"])
    tokenizer, tokens = prepare(source, TokenizerChoice("cl100k_base"), tmp_path / "t.npy")
    assert (len(tokens), tokenizer.size, int(tokens.ids.max())) == (77_919, 3_989, 3_988)
    assert tokenizer.original_id(3_988) == 100_069
    rows = tokenizer.encode("Chapter 1: Building Rapport and Capturing")
    ids = [26072, 220, 16, 25, 17283, 23097, 403, 323, 17013, 1711]  # as document 004 prints them
    assert [tokenizer.original_id(row) for row in rows] == ids
    expected = TokenizerChoice("cl100k_base", compact=False)
    tokenizer, tokens = prepare(source, expected, tmp_path / "t.npy")
    assert (len(tokens), tokenizer.size, tokens.ids.dtype) == (77_919, 100_070, np.uint32)
    text = (data / "sales_textbook.txt").read_text("utf-8")
    assert tokens.ids.tolist() == cl100k.encode_ordinary(text)
