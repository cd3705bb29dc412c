"""The arguments of `record` and of a recording: valid ones work, others raise one clear line."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shown_maps import WIDTH, Given, Heads, recorded

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.models import GPT, GPTConfig
from heedful.ops.indexing import indices
from heedful.recording import from_attentions

AS_A_USER = pytest.mark.usefixtures("as_a_user")  # without the errors of beartype
IDS = torch.arange(2 * 11).view(2, 11) % 23


@pytest.fixture(scope="module")
def model():
    return GPT(GPTConfig(vocabulary=23, context_length=32, width=24, layers=3, heads=4)).eval()


@pytest.fixture(scope="module", name="recording")
def of_model(model):
    return recorded(model, IDS, values=True)


def refused(words, ask, *inputs):
    with pytest.raises(ArgumentError) as error:
        ask(*inputs)
    assert re.search(words, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)
    assert "expected" in str(error.value)


@given(st.data())
def test_indices_select_as_in_python_and_torch(data):
    chosen = data.draw(st.lists(st.booleans(), min_size=1, max_size=13))
    row = torch.arange(len(chosen)) * 3
    for form in (chosen, torch.tensor(chosen)):
        picked = row[indices(form, len(chosen), "key")]
        assert torch.equal(picked, row[torch.tensor(chosen)])
    ends = st.none() | st.integers(-12, 12)
    step = data.draw(st.none() | st.integers(-3, 3).filter(bool))
    part = slice(data.draw(ends), data.draw(ends), step)
    assert indices(part, len(row), "key").tolist() == list(range(len(row)))[part]


@AS_A_USER
@pytest.mark.parametrize(
    "index",
    [[0.5], torch.tensor([1.0]), [True], torch.ones(4, dtype=torch.bool), [3], [-4], "1", {1},
     [[0], [1]], [None], 10**30, slice(0, 1.5), [1j], ["1"]],
)  # fmt: skip
def test_an_invalid_index_raises_one_line(index):
    refused("key ind.*3", indices, index, 3, "key")


@AS_A_USER
def test_booleans_select_rows_and_columns_of_a_map(recording):
    call, keys, queries = recording[1], IDS[0] % 3 == 0, IDS[0] > 4
    whole, norms = call.weights(), call.value_norm()
    region = call.weights(queries=queries, keys=keys)
    torch.testing.assert_close(region, whole[:, queries][:, :, keys])
    for form in (keys.tolist(), keys.numpy()):
        torch.testing.assert_close(call.weights(keys=form), whole[:, :, keys])
    torch.testing.assert_close(call.value_norm(2, queries, keys), norms[2, queries][:, keys])
    torch.testing.assert_close(call.weights(torch.tensor(2), np.int64(3)), whole[2, 3:4])


@AS_A_USER
@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda call: call.weights([0, 1]), r"head=\[0, 1\]"),
        (lambda call: call.weights(True), "head=True"),
        (lambda call: call.weights(4), "head 4; expected head 0 to 3"),
        (lambda call: call.weights(keys=torch.ones(3, dtype=torch.bool)), "a list of 11 booleans"),
        (lambda call: call.weights(queries=2.0), "query indices 2.0"),
        (lambda call: call.value_norm(keys=[11]), "key index 11"),
        (lambda call: call.top(2.5), "top=2.5; .* 1 or more"),
        (lambda call: call.diagonal(0.5), "offset=0.5"),
        (lambda call: call.heatmap(2.5), "size=2.5"),
        (lambda call: call.heatmap(queries=[1, 2]), r"queries=\[1, 2\]; .* a slice"),
    ],
)
def test_an_invalid_request_to_a_call_raises_one_line(recording, ask, words):
    refused(words, ask, recording[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"heads": 0}, r"heads=0; .* such as heads=\[0\]"),
        ({"layers": True}, "layers=True"),
        ({"heads": []}, r"heads=\[\]"),
        ({"heads": [1, 1]}, "each once"),
        ({"heads": [1.5]}, r"heads=\[1.5\]"),
        ({"layers": [-1]}, "whole numbers from 0"),
        ({"layers": torch.tensor([[1]])}, "layers=tensor"),
        ({"every": 0}, "every=0"),
        ({"every": True}, "every=True"),
        ({"budget": "1GB"}, "budget='1GB'; .* whole number"),
        ({"budget": float("inf")}, "budget=inf"),
        ({"dtype": "float16"}, "dtype='float16'; .* torch.float16"),
        ({"dtype": torch.int8}, "torch.int8"),
    ],
)
def test_invalid_arguments_are_refused_before_the_model_runs(model, arguments, words):
    refused(words, heedful.record(model, **arguments).__enter__)


def test_a_model_that_is_no_module_is_refused():
    refused("expected a torch module", heedful.record("gpt2").__enter__)


def test_missing_layers_and_heads(model):
    with (
        pytest.raises(ArgumentError, match="no layer 7 was recorded; expected numbers from 0 to 2"),
        heedful.record(model, layers=[1, 7]) as recording,
    ):
        model(IDS)
    assert [call.layer for call in recording] == [1]
    with heedful.record(model, layers=[7]) as recording:
        pass  # without a pass, the layers are unknown
    with pytest.raises(ZeroDivisionError), heedful.record(model, layers=[7]):
        print(model(IDS).logits.numel() / 0)  # the user must see this error
    with pytest.raises(RunError, match="nothing was recorded"):
        recording.summary()
    with pytest.raises(ArgumentError, match=r"head 7.* 0 to 3"), heedful.record(model, heads=[7]):
        model(IDS)


@pytest.mark.filterwarnings("ignore:attention of Heads was not recorded")
def test_a_missing_head_of_attention_by_hand_is_reported():
    model = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)
    recording = recorded(model, torch.randn(1, 5, WIDTH), heads=[99])
    assert recording.missed == {"Heads": "head 99 of Heads; expected heads from 0 to 2"}


CHOSEN = [3, 1]


@pytest.mark.parametrize("heads", [tuple(CHOSEN), torch.tensor(CHOSEN), np.array(CHOSEN)], ids=type)
def test_selected_heads_keep_their_order_and_their_numbers(model, recording, heads, tmp_path):
    with heedful.record(model, heads=heads, layers=range(1, 3), budget=2e9) as some:
        model(IDS)
    for each in (some, heedful.load(some.save(tmp_path / "r"))):
        assert [call.layer for call in each] == [1, 2]
        for chosen, call in zip(each, recording[1:], strict=True):
            assert chosen.heads == CHOSEN
            assert "heads 3, 1" in repr(chosen)
            torch.testing.assert_close(chosen.weights(), call.weights()[CHOSEN])
            torch.testing.assert_close(chosen.weights(head=3), call.weights(head=3))
            torch.testing.assert_close(chosen.entropy(1), call.entropy(1))
        for head in (0, -1):
            refused(f"head {head}; expected a recorded head: 3, 1", each[0].weights, head)
    assert torch.equal(recording[0].weights(head=-1), recording[0].weights(head=3))


def test_statistics_of_a_sequence_of_only_padding_are_nan(model):
    keep = torch.ones(3, 7, dtype=torch.bool)
    keep[1], keep[2, 4:] = False, False
    ids = IDS[:1, :7].expand(3, 7)
    recording = recorded(model, ids, named={"keep": keep}, values=True)
    empty = recording.sequences[1]
    summary = empty.summary()
    assert [len(tokens) for tokens in summary.pop("received")] == [4, 4, 4]
    assert all(values.shape == (3, 4) and values.isnan().all() for values in summary.values())
    call = empty[0]
    assert call.weights().shape == call.value_norm().shape == call.heatmap(8).shape == (4, 0, 0)
    assert call.top(2).keys.shape == (4, 0, 2)
    assert not recording.sequences[2].summary()["entropy"].isnan().any()


def test_an_empty_batch_raises_one_line():
    model = Given(lambda x: heedful.attention(x, x, x))
    recording = recorded(model, torch.randn(0, 3, 5, 4))
    assert recording.sequences == []
    for ask in (recording.summary, lambda: recording[0], lambda: list(recording)):
        with pytest.raises(RunError, match="no sequence in"):
            ask()


def of_rows(*rows):
    return torch.tensor(rows, dtype=torch.float32).expand(1, 2, len(rows), len(rows[0]))


def test_rows_that_sum_to_less_than_one_are_preserved():
    random = torch.rand(2, 3, 5, 7).softmax(-1) * torch.rand(2, 3, 5, 1)
    random[:, :, 2] = 0.0
    for [call], weights in zip(from_attentions([random]).sequences, random, strict=True):
        torch.testing.assert_close(call.weights(), weights)
        expected = (1 - weights.sum(-1)).masked_fill(torch.arange(5) == 2, torch.nan)
        torch.testing.assert_close(call.learned_sink(), expected, equal_nan=True)
        torch.testing.assert_close(call.heatmap(16), weights)


NO_WEIGHTS = [
    of_rows([0.5, -0.1], [0.5, 0.5]),
    of_rows([0.8, 0.4], [0.5, 0.5]),  # after dropout
    torch.randn(1, 2, 5, 5),  # scores
    of_rows([float("nan"), 1.0], [0.5, 0.5]),
]
NO_MAPS = [None, 3, [None], [torch.eye(3)], torch.ones(1, 2, 3, 3), ["a"]]


@pytest.mark.parametrize("maps", [*([map_] for map_ in NO_WEIGHTS), *NO_MAPS])
def test_invalid_maps_raise_one_line(maps):
    refused(r"weights|attentions of .*a tensor", from_attentions, maps)
