import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.text import BPETokenizer, CharacterTokenizer

BYTES = BPETokenizer.train(["x"], 256)  # one token a byte


def spell(data):
    ids = {BYTES.token_bytes(id): id for id in range(256)}
    return [ids[bytes([byte])] for byte in data]


@pytest.mark.parametrize("token", [-1, 3, np.int64(-1)])
def test_an_id_out_of_range_is_refused(token):
    with pytest.raises(ArgumentError, match="0 to 2"):
        CharacterTokenizer("abc").decode([token])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (" a\n", ["·", "a", "↵"]),
        ("\t\r\0", ["⇥", "␍", "<00>"]),
        ("é\u200b", ["é", "<e2><80><8b>"]),
        ("e\u0301", ["e", "◌\u0301"]),
    ],
)
def test_labels_of_whitespace_and_unprintable_characters(text, pieces):
    tokenizer = CharacterTokenizer.train([text])
    assert tokenizer.pieces(tokenizer.encode(text)) == pieces


@given(st.text())
def test_each_token_has_a_printable_label(text):
    text = text.encode("utf-8", "replace").decode()
    ids = BYTES.encode(text)
    pieces = BYTES.pieces(ids)
    assert len(pieces) == len(ids) == len(text.encode())
    assert all(piece and piece.isprintable() and " " not in piece for piece in pieces)


def test_part_of_a_character_is_shown_as_bytes_and_decoded_with_replacement():
    ids = spell("n€".encode())
    assert BYTES.pieces(ids) == ["n", "<e2>", "<82>", "<ac>"]
    assert BYTES.decode(ids) == "n€"
    assert BYTES.decode(ids[:-1]) == "n\ufffd"
    assert BYTES.decode_bytes(ids[:-1]) == b"n\xe2\x82"
