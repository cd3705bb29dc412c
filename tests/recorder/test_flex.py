"""Flex attention called by a module itself, and not through transformers."""

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import heedful
from heedful.ops.masks import Causal, Combined, KeyRanges

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
DOCUMENTS = torch.tensor([0] * 4 + [1] * 6)


class Flex(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, query, key, **options):
        return self.call(query, key, key, enable_gqa=True, **options)


@pytest.mark.parametrize("call", [flex_attention, torch.compile(flex_attention, backend="eager")])
def test_packed_documents(call):
    def own(b, h, q, k):
        return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)

    mask = create_block_mask(own, None, None, 10, 10, device="cpu")
    query, key = torch.randn(2, 4, 10, 16), torch.randn(2, 2, 10, 16)
    model = Flex(call)
    with torch.no_grad(), heedful.record(model) as recording:
        model(query, key, block_mask=mask, scale=0.3)
    place = torch.arange(10)
    allowed = (DOCUMENTS[:, None] == DOCUMENTS) & (place[:, None] >= place)
    scores = 0.3 * query @ key.repeat_interleave(2, 1).mT
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    for sequence, map_ in zip(recording.sequences, expected, strict=True):
        [found] = sequence
        assert (found.kind, found.door) == ("causal", "flex_attention")
        assert isinstance(found.causes.mask, Combined)
        assert [type(part) for part in found.causes.mask.parts] == [Causal, KeyRanges]
        torch.testing.assert_close(found.weights(), map_, atol=2e-6, rtol=0)
        assert found.check.passed


def test_scores_that_a_function_has_changed_are_missed_and_said_so():
    model = Flex(flex_attention)
    query = torch.randn(1, 2, 5, 16)
    expected = flex_attention(query, query, query, score_mod=nearer)
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="attention of Flex was not recorded.*score_mod"),
        heedful.record(model) as recording,
    ):
        assert torch.equal(model(query, query, score_mod=nearer), expected)
    assert len(recording) == 0
    assert list(recording.missed) == ["Flex"]


def nearer(score, b, h, q, k):
    return score - (q - k).abs()
