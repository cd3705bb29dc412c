import numpy as np
import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError, TextError
from heedful.text import TiktokenTokenizer, open_encoding

TEXTS = st.lists(st.sampled_from(["the", " the", "thing", "—", "<|end|>", "é"]) | st.text())


def used_ids(tiny, text):
    return np.unique(tiny.encode_ordinary(text))


def test_compact_rows_are_the_ids_used_and_the_single_bytes(tiny):
    tokenizer = TiktokenTokenizer.compact(tiny, used_ids(tiny, "the thing — the"))
    assert tokenizer.size == 256 + 5  # 'the', 'th', 'ing', '—', ' the'
    assert sorted(tokenizer.originals[256:]) == [256, 258, 259, 261, 263]
    rows = tokenizer.encode("the thing — the")
    assert [tokenizer.original_id(row) for row in rows] == tiny.encode_ordinary("the thing — the")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, training=st.sampled_from(["a", "the", "thing — the"]))
def test_any_text_decodes_to_itself(texts, training, tiny):
    text = "".join(texts).encode("utf-8", "replace").decode()
    for create in (TiktokenTokenizer.compact, TiktokenTokenizer.up_to_largest):
        tokenizer = create(tiny, used_ids(tiny, training))
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()
    rows = TiktokenTokenizer.up_to_largest(tiny, used_ids(tiny, text))
    assert rows.size == max(255, *used_ids(tiny, text), 0) + 1
    assert rows.encode(text) == tiny.encode_ordinary(text)
    assert TiktokenTokenizer.full(tiny).encode(text) == tiny.encode_ordinary(text)


def test_the_full_encoding_has_gaps_and_special_tokens(tiny):
    tokenizer = TiktokenTokenizer.full(tiny)
    assert tokenizer.size == 271
    assert [tokenizer.token_bytes(id) for id in (263, 264, 270)] == ["—".encode(), b"", b"<|end|>"]
    assert 270 not in tokenizer.encode("<|end|>")


def test_invalid_arguments_are_refused(tiny, monkeypatch):
    def fail(name):
        raise ConnectionError("refused")

    full = TiktokenTokenizer.full(tiny)
    monkeypatch.setattr(tiktoken, "get_encoding", fail)
    for call, error, words in (
        (lambda: TiktokenTokenizer(tiny, np.array([0, 1])), ArgumentError, "256"),
        (lambda: TiktokenTokenizer(tiny, np.array([], np.int64)), ArgumentError, "256"),
        (lambda: full.encode("ab\udcff"), TextError, "position 2"),
        (lambda: full.original_id(271), ArgumentError, "0 to 270"),
        (lambda: open_encoding("o200k"), ArgumentError, "expected o200k_base"),
        (lambda: open_encoding("gpt2"), TextError, "TIKTOKEN_CACHE_DIR"),
    ):
        with pytest.raises(error, match=words):
            call()
