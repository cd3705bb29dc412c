import numpy as np
import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError, TextError
from heedful.text import TiktokenTokenizer, open_encoding
from heedful.text.tiktoken_encoding import original_ids

TEXTS = st.lists(st.sampled_from(["the", " the", "thing", "—", "<|end|>", "é"]) | st.text())


def used(tiny, text):
    return np.unique(tiny.encode_ordinary(text))


def test_compact_rows_are_the_ids_used_and_the_single_bytes(tiny):
    tokenizer = TiktokenTokenizer.compact(tiny, used(tiny, "the thing — the"))
    assert tokenizer.size == 256 + 5  # 'the', 'th', 'ing', '—', ' the'
    assert sorted(tokenizer.originals[256:]) == [256, 258, 259, 261, 263]
    rows = tokenizer.encode("the thing — the")
    assert [tokenizer.original_id(row) for row in rows] == tiny.encode_ordinary("the thing — the")


def test_an_id_without_a_row_is_spelled_in_bytes(tiny):
    tokenizer = TiktokenTokenizer.compact(tiny, used(tiny, "the"))
    ids = tokenizer.encode("in the —")
    assert [tokenizer.token_bytes(id) for id in ids] == [
        *(b"i", b"n", b" ", b"t", b"h", b"e", b" ", b"\xe2", b"\x80", b"\x94")
    ]
    assert tokenizer.encode("the") == [256]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, training=st.sampled_from(["a", "the", "thing — the"]))
def test_any_text_decodes_to_itself(texts, training, tiny):
    text = "".join(texts).encode("utf-8", "replace").decode()
    for make in (TiktokenTokenizer.compact, TiktokenTokenizer.up_to_largest):
        tokenizer = make(tiny, used(tiny, training))
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()
    assert TiktokenTokenizer.whole(tiny).encode(text) == tiny.encode_ordinary(text)


def test_rows_up_to_the_largest_are_the_ids_themselves(tiny):
    tokenizer = TiktokenTokenizer.up_to_largest(tiny, used(tiny, "the in"))
    assert tokenizer.size == 261
    assert tokenizer.encode("the in") == tiny.encode_ordinary("the in")
    assert tokenizer.decode(tokenizer.encode("thing")) == "thing"
    assert TiktokenTokenizer.up_to_largest(tiny, used(tiny, "")).size == 256


def test_the_whole_encoding_has_gaps_and_special_tokens(tiny):
    tokenizer = TiktokenTokenizer.whole(tiny)
    assert tokenizer.size == 271
    assert [tokenizer.token_bytes(id) for id in (263, 264, 270)] == ["—".encode(), b"", b"<|end|>"]
    assert 270 not in tokenizer.encode("<|end|>")


@pytest.mark.parametrize("rows", [[0, 1], [1, 0], []])
def test_rows_that_do_not_fit_are_refused(rows, tiny):
    with pytest.raises(ArgumentError):
        TiktokenTokenizer(tiny, np.array(rows, np.int64))


def test_half_a_surrogate_pair_and_an_unknown_row_are_refused(tiny):
    tokenizer = TiktokenTokenizer.whole(tiny)
    with pytest.raises(TextError, match="position 2"):
        tokenizer.encode("ab\udcff")
    with pytest.raises(ArgumentError, match="0 to 270"):
        tokenizer.original_id(271)


def test_an_unknown_name_lists_the_known_ones_and_the_closest():
    with pytest.raises(ArgumentError, match=r"gpt2.*cl100k_base.*did you mean o200k_base\?"):
        open_encoding("o200k")
    with pytest.raises(ArgumentError) as error:
        open_encoding("zzzz")
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("error", [ConnectionError("refused"), ValueError("Hash mismatch")])
def test_ranks_that_cannot_be_had_say_what_to_set(error, monkeypatch):
    def fail(name):
        raise error

    monkeypatch.setattr(tiktoken, "get_encoding", fail)
    with pytest.raises(TextError, match="TIKTOKEN_CACHE_DIR"):
        open_encoding("gpt2")


def test_the_textbook_in_cl100k(data, cl100k):
    text = (data / "sales_textbook.txt").read_text("utf-8")
    ids = original_ids(cl100k, text)
    assert (len(ids), len(np.unique(ids)), ids.max()) == (77_919, 3_771, 100_069)
    assert TiktokenTokenizer.up_to_largest(cl100k, ids).size == 100_070
    compact = TiktokenTokenizer.compact(cl100k, ids)
    assert compact.size == 3_989
    rows = compact.encode("Chapter 1: Building Rapport and Capturing")
    ids = [26072, 220, 16, 25, 17283, 23097, 403, 323, 17013, 1711]
    assert [compact.original_id(row) for row in rows] == ids
    assert compact.decode(compact.encode("Ein Übermaß – 東京 🙂")) == "Ein Übermaß – 東京 🙂"
