import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from heedful.text import StringSource
from heedful.text.sources import split_text

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
SIGNS = "aé1٣_/-(。，.,:🙂 \n\t\u00a0\u3000\x1c"
PIECES = st.sampled_from(
    [*SIGNS, *("Zb", "e\u0301", "234", "中文", "'s", "'LL", "!?", "  ", "\n\n", "\r\n")]
)
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=60).map("".join)


@pytest.mark.parametrize("pattern", [GPT2, CL100K, O200K], ids=["gpt2", "cl100k", "o200k"])
@given(text=TEXTS, size=st.integers(1, 40), block=st.integers(1, 50))
def test_words_of_the_pieces_are_the_words_of_the_text(pattern, text, size, block):
    blocks = [text[start : start + block] for start in range(0, len(text), block)]
    pieces = list(split_text(blocks, size))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= size for piece in pieces)
    joined = [pieces[0]] if pieces else []
    for piece in pieces[1:]:  # pieces split at an unsafe position are joined again
        if joined[-1][-1].isalnum() and piece[0] in " \n\t\r.,:!?\u00a0\u3000\x1c。，":
            joined.append(piece)
        else:
            joined[-1] += piece
    words = [word for piece in joined for word in regex.findall(pattern, piece)]
    assert words == regex.findall(pattern, text)


@pytest.mark.parametrize("name", ["sales_textbook.txt", "tinyshakespeare.txt"])
def test_ids_of_pieces_are_the_ids_of_a_whole_book(name, data, cl100k):
    text = (data / name).read_text("utf-8")
    pieces = list(StringSource(text).pieces(size=1000))
    assert len(pieces) > 400
    ids = [id for piece in pieces for id in cl100k.encode_ordinary(piece)]
    assert ids == cl100k.encode_ordinary(text)
