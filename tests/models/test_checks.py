"""A padding mask that does not fit the cached and new tokens is refused with a one-line error."""

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.models.checks import check_keep


def ids(tokens, rows=2):
    return torch.zeros(rows, tokens, dtype=torch.long)


def test_a_cache_and_new_tokens_beyond_the_context():
    model = GPT(GPTConfig(vocabulary=7, context_length=9, width=8, heads=2)).eval()
    cache = model.new_cache(2, capacity=20)
    model(ids(6), cache=cache)
    with pytest.raises(ArgumentError, match=r"a text of 10 tokens; expected at most .* 9"):
        model(ids(4), cache=cache)
    model(ids(3), cache=cache)


def test_a_target_beyond_the_context():
    model = Seq2Seq(Seq2SeqConfig(vocabulary=7, context_length=9, width=8, heads=2)).eval()
    memory, cache = model.encode(ids(5)), model.new_cache(2, source=5, capacity=20)
    model.decoder_states(ids(6), memory, cache=cache)
    with pytest.raises(ArgumentError, match=r"a target of 10 tokens; expected at most .* 9"):
        model.decoder_states(ids(4), memory, cache=cache)


def test_keep_includes_the_cached_tokens():
    keep = torch.ones(2, 5, dtype=torch.bool)
    check_keep(keep, ids(2), start=3)
    with pytest.raises(ArgumentError, match=r"keep \(2, 5\) .* booleans \(2, 5\)") as plain:
        check_keep(keep.long(), ids(5))
    assert "cache" not in str(plain.value)
    with pytest.raises(ArgumentError, match=r"booleans \(2, 8\).* without the cached tokens"):
        check_keep(keep, ids(5), start=3)
