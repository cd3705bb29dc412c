"""Modules whose `forward` is called itself, past their hooks, as sentence-transformers does."""

import functools
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful.models import GPT, GPTConfig
from heedful.recorder import past_call

IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 7, 0, 0, 0]])
KEEP = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


def bert():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(**sizes, intermediate_size=16)
    return transformers.BertModel(config).eval()


class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, given):
        return self.model.forward(**given).last_hidden_state


def named(ids):
    return [f"t{number}" for number in ids]


@pytest.mark.parametrize("around", [False, True])
def test_padding_and_tokens_of_a_forward_are_those_of_a_call(around):
    model = bert()
    given = {"input_ids": IDS, "attention_mask": KEEP}
    outer = Around(model).eval() if around else model

    def run(forward):
        with torch.no_grad(), heedful.record(outer, tokenizer=named) as recording:
            forward()
        return recording

    called = run(lambda: model(**given))
    passed = run((lambda: outer(given)) if around else (lambda: model.forward(**given)))
    assert passed.missed == {}
    for own, other in zip(called.sequences, passed.sequences, strict=True):
        for call, again in zip(own, other, strict=True):
            assert (again.proof, again.name) == ("proved", call.name)
            assert again.shape == call.shape
            assert again.tokens == call.tokens
            assert torch.equal(again.weights(), call.weights())
    assert passed.sequences[1][0].tokens == ["t1", "t2", "t7"]


def test_each_forward_of_a_model_is_a_pass():
    model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model.forward(IDS[:1])
        model.forward(IDS[:1, :4])
        model(IDS[1:])
    assert [call.pass_index for call in recording] == [0, 0, 1, 1, 2, 2]
    assert [call.tokens for call in recording[::2]] == [
        named([1, 2, 3, 4, 5, 6]),
        named([1, 2, 3, 4]),
        named([1, 2, 7, 0, 0, 0]),
    ]


class Attend(nn.Module):
    def __init__(self, *, by_hand):
        super().__init__()
        self.project, self.by_hand = nn.Linear(12, 36), by_hand

    def forward(self, x, mask=None, *, scale=0.5):
        query, key, value = self.project(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            return ((query @ key.mT * scale).softmax(-1) @ value).transpose(1, 2).flatten(2)
        return F.scaled_dot_product_attention(query, key, value, scale=scale).flatten(2)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_model_of_ones_own_whose_forward_is_called_is_recorded(by_hand):
    model = Attend(by_hand=by_hand).eval()
    x = torch.randn(1, 5, 12)
    with torch.no_grad(), heedful.record(model) as called:
        expected = model(x)
    with torch.no_grad(), heedful.record(model) as passed:
        found = model.forward(x)
    assert torch.equal(found, expected)
    assert passed.missed == {}
    assert [call.name for call in passed] == [call.name for call in called]
    assert torch.equal(passed[0].weights(), called[0].weights())


def decorated(function):
    @functools.wraps(function)
    def wrapper(self, *given, **named):
        return function(self, *given, **named)

    return wrapper


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.attend = nn.Embedding(9, 12), Attend(by_hand=True)

    @decorated
    def forward(self, input_ids, /, other=None, *places, attention_mask=None, **more):
        return self.attend(self.tokens(input_ids))


class Below(Decorated):
    def forward(self, *given, **named):
        return super().forward(*given, **named)


@pytest.mark.parametrize("kind", [Decorated, Below])
def test_what_a_forward_was_given_is_read_from_the_outermost_frame(kind):
    model = kind().eval()
    seen = []

    def hook(part, given):
        codes = {code for one in model.modules() for code in past_call.codes_of(one)}
        seen.extend(past_call.running_forwards(sys._getframe(1), None, codes, ()))

    model.tokens.register_forward_pre_hook(hook)
    model.forward(IDS, 1, 2, attention_mask=KEEP, more=3)
    assert [one.module for one in seen if one.module is model] == [model]
    own = next(one for one in seen if one.module is model)
    assert own.arguments == (IDS, 1, 2)
    assert own.keywords == {"attention_mask": KEEP, "more": 3}


def test_what_a_module_in_call_has_let_go_is_not_held():
    """A frame whose locals are asked for holds them in older versions of Python."""
    freed = []

    class Frees(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(9, 12)

        def forward(self, ids):
            table = torch.zeros(5)
            storage = table.untyped_storage()
            before = sys.getrefcount(storage)
            x = self.tokens(ids)
            freed.append(sys.getrefcount(table))
            assert sys.getrefcount(storage) == before
            return x

    model = Frees().eval()
    with heedful.record(nn.ModuleList([model]).append(Attend(by_hand=True))), torch.no_grad():
        model(IDS)
    assert freed == [2]


def test_an_encoder_inside_that_was_given_a_mask_of_queries_and_keys_knows_its_padding():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert()

        def forward(self, input_ids, attention_mask):
            hidden = self.bert.embeddings(input_ids)
            mask = (1.0 - attention_mask[:, None, None].float()) * torch.finfo(torch.float32).min
            return self.bert.encoder(hidden, attention_mask=mask).last_hidden_state

    model = Outer().eval()
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS, KEEP)
    call = recording.sequences[1][0]
    assert (call.shape, call.proof) == ((3, 3, 3), "assumed")
    assert "padding" in call.why
