import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ArgumentError, TextError
from heedful.text import CharacterTokenizer


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1).filter(any))
def test_ids_are_indices_into_the_sorted_characters(pieces):
    tokenizer = CharacterTokenizer.train(pieces)
    text = "".join(pieces)
    alphabet = sorted(set(text))
    assert tokenizer.size == len(alphabet)
    assert tokenizer.encode(text) == [alphabet.index(char) for char in text]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("char", ["b", "d", "é", "🙂", "\ud800"])  # between, after, far after
def test_an_unknown_character_is_named_with_its_position(char):
    with pytest.raises(TextError, match=f"U\\+{ord(char):04X}.* position 3.*3 characters"):
        CharacterTokenizer("ace").encode("ace" + char + "z")


def test_spans_of_half_a_surrogate_pair_and_of_an_empty_text():
    assert CharacterTokenizer("a").encode("") == CharacterTokenizer("a").spans("") == []
    tokenizer = CharacterTokenizer("aé\ud800")
    assert tokenizer.spans("é\ud800a") == [(0, 1), (1, 2), (2, 3)]


def test_an_empty_text_and_unsorted_characters_are_refused():
    with pytest.raises(TextError, match="empty"):
        CharacterTokenizer.train([])
    for characters in ("", "ba", "aa"):
        with pytest.raises(ArgumentError, match="sorted"):
            CharacterTokenizer(characters)
