import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from heedful.errors import ArgumentError, TextError
from heedful.text import BPETokenizer, python_reference
from heedful.text.bpe import SPLIT

TRAINED = BPETokenizer.train([python_reference()], 900)
WORDS = st.sampled_from(python_reference().split()[:300])
TEXTS = st.lists(WORDS | st.text(max_size=8), max_size=30).map(" ".join)


@given(TEXTS)
def test_any_text_decodes_to_itself(text):
    assert TRAINED.decode_bytes(TRAINED.encode(text)) == text.encode()


@given(TEXTS)
def test_ids_are_those_of_hugging_face(text):
    assert TRAINED.encoding is not None
    assert TRAINED.size == 900
    assert TRAINED.encode(text) == TRAINED._library.encode(text).ids


def test_both_libraries_split_each_character_alike():
    """`a`, `1` or `!` merges with a character's first byte only if both are in the same word."""
    chars = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    firsts = {char.encode()[:1] for char in chars}
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {prefix + first: 0 for prefix in (b"a", b"1", b"!") for first in firsts}
    ranks = {token: rank for rank, token in enumerate(ranks)}
    encoding = tiktoken.Encoding("one", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for prefix in "a1!":
        is_joined = [len(encoding.encode_ordinary(prefix + c)) == len(c.encode()) for c in chars]
        assert is_joined == [len(pre_tokenizer.pre_tokenize_str(prefix + c)) == 1 for c in chars]


def test_tiktoken_is_not_used_where_it_would_encode_differently():
    """`abc` arises only from (ab, c), but (b, c) is merged first, which leaves (a, bc)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    vocabulary = {token: id for id, token in enumerate([*alphabet, "bc", "ab", "abc"])}
    library = tokenizers.Tokenizer.from_str(TRAINED._library.to_str())
    library.model = models.BPE(vocabulary, merges)
    tokenizer = BPETokenizer(library)
    assert tokenizer.encoding is None
    assert tokenizer.pieces(tokenizer.encode("abc")) == ["a", "bc"]


def test_training_counts_pairs():
    tokenizer = BPETokenizer.train(["ab ab ab ab cd cd"], 259)
    tokens = {tokenizer.token_bytes(id) for id in range(256, 259)}
    assert tokens == {b"ab", b" ab", b"cd"}
    assert BPETokenizer.train(["aa"], 4096).size == 257  # a text with fewer pairs


def test_a_special_token_in_a_text_is_recognised():
    library = tokenizers.Tokenizer.from_str(TRAINED._library.to_str())
    library.add_special_tokens(["<|endoftext|>"])
    tokenizer = BPETokenizer(library)
    assert tokenizer.size == 901
    assert tokenizer.token_bytes(900) == b"<|endoftext|>"
    assert tokenizer.encode("a<|endoftext|>b") == [*TRAINED.encode("a"), 900, *TRAINED.encode("b")]
    assert 900 not in TRAINED.encode("a<|endoftext|>b")


def test_invalid_arguments_are_refused():
    with pytest.raises(ArgumentError, match="256 or more"):
        BPETokenizer.train(["text"], 255)
    with pytest.raises(ArgumentError, match="byte-level BPE"):
        BPETokenizer(tokenizers.Tokenizer(models.WordPiece()))
    with pytest.raises(TextError, match="position 1"):
        TRAINED.encode("a\ud800")


def test_training_on_one_long_word_is_fast():
    """A word of a million letters would take minutes if each merge scanned all of it."""
    tokenizer = BPETokenizer.train(["ACGT" * 250_000], 264)
    assert b"ACGTACGT" in {tokenizer.token_bytes(id) for id in range(256, 264)}
    assert tokenizer.decode(tokenizer.encode("ACGT" * 9 + "A")) == "ACGT" * 9 + "A"
