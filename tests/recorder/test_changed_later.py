"""Tables that a model changes between its scores and its values: what is shown is right, or missed.

torch counts the changes of a tensor, but not in inference mode: what is used there is copied.
"""

import pytest
import torch
from looked import WIDTH, D, H, Heads, M, N, shows
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.recorder.owners import mask_structure

CHANGED = "were changed in place before their values"
MANY, ROW = 40, 3  # rows, and one that is not among those that are compared


def are_those(recording, met, **near):
    """The calls of one text have these weights, (1, H, N, M) each."""
    for call, expected in zip(recording, met, strict=True):
        torch.testing.assert_close(call.weights().detach(), expected[0].detach(), **near)


def kept(scores, table, hidden):
    table.copy_(~hidden)
    return scores * table - 1e9 * (1 - table)


def with_low_numbers(scores, table, hidden):
    """In one row all of them are low, and have weights."""
    hidden = hidden.clone()
    hidden[ROW] = True
    return torch.where(hidden, table.mul_(-2e4), scores)


def with_a_sink(scores, table, hidden):
    return torch.cat([scores, table[:, :1].expand(*scores.shape[:-1], 1)], dim=-1)


TABLES = {
    "a factor of each query": lambda scores, table, _: scores * table[:, :1],
    "a divisor of each query": lambda scores, table, _: scores / table[:, :1],
    "a mask that multiplies": kept,
    "a bias": lambda scores, table, _: scores + table,
    "a bias before the scores": lambda scores, table, _: table + scores,
    "a bias taken off": lambda scores, table, _: scores - table,
    "two biases": lambda scores, table, _: torch.add(scores, table, alpha=2),
    "low numbers": with_low_numbers,
    "a mask": lambda scores, _, hidden: scores.masked_fill(hidden, -torch.inf),
    "a mask in the opposite sense": lambda scores, _, hidden: torch.where(~hidden, scores, -1e9),
    "a sink": with_a_sink,
}


def softened(scores_of):
    return lambda *given: scores_of(*given).softmax(-1)[..., :MANY]


def over_its_sum(made):
    return made / made.sum(dim=-1, keepdim=True)


WAYS = {
    **{name: softened(scores_of) for name, scores_of in TABLES.items()},
    "a mask of what is raised": lambda scores, _, hidden: over_its_sum(
        scores.exp().masked_fill(hidden, 0.0)
    ),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("way", WAYS)
def test_a_table_that_changes_in_a_row_that_is_not_compared(way, mode):
    met = []

    def attend(query, key):
        table, hidden = torch.rand(MANY, MANY) + 0.5, torch.rand(MANY, MANY) < 0.4
        hidden[:, 0] = False
        weights = WAYS[way](query @ key.mT / 2, table, hidden)
        met.append(weights.clone())
        table[ROW], hidden[ROW, 1:] = table[ROW].flip(0) + 1, ~hidden[ROW, 1:]
        return weights @ key

    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, MANY, WIDTH))
    if mode is torch.inference_mode or not recording.missed:
        shows(recording, met[0])
    else:
        assert CHANGED in recording.missed["Heads"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("is_same", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_mask_that_changes_before_the_values_are_met_shows_nothing_else(
    is_large, is_same, mode, monkeypatch
):
    if is_large:
        monkeypatch.setattr(mask_structure, "ENTRIES", 3)
    with mode():
        hidden = torch.rand(N, M) < 0.4
        hidden[:, 0] = False
        other = hidden if is_same else hidden.clone()
    met = []

    def attend(query, key):
        weights = (query @ key.mT / 2).masked_fill(hidden, -1e9).softmax(-1)
        weights = weights.masked_fill_(other, 0.0)
        met.append(weights.clone())
        other[2:] = True
        return weights @ key

    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    if is_same and mode is torch.no_grad:  # else it was copied at once
        assert CHANGED in recording.missed["Heads"]
    else:
        shows(recording, met[0], proof="proved")


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_mask_of_inference_mode_that_each_layer_changes_is_that_of_each(is_copied):
    """It has the same address in both, and counts no changes."""
    with torch.inference_mode():
        hidden, met = torch.zeros(N, M).bool(), []

    def attend(query, key):
        for row in range(2):
            hidden[:, row] = True
            mask = hidden.clone() if is_copied else hidden
            met.append((query @ key.mT / 2).masked_fill(mask, -torch.inf).softmax(-1))
            key = met[-1] @ key
            key = key.repeat_interleave(2, dim=2)[:, :, :M]
        return key

    with torch.inference_mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    assert not recording.missed
    are_those(recording, met)


@pytest.mark.parametrize("changes", [(True, False), (False, True), (True, True)])
def test_a_mask_that_layers_share_and_change_is_that_of_each(changes):
    """The first changes it after its softmax, and the second uses what it has become."""
    with torch.inference_mode():
        hidden, met = torch.rand(N, M) < 0.4, []
        hidden[:, 0] = False

    def attend(query, key):
        output = 0
        for layer, is_changed in enumerate((*changes, False)):
            met.append((query @ key.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1))
            if is_changed:
                hidden[:, layer + 1] ^= True
            output = output + met[-1] @ key
        return output

    with torch.inference_mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    assert not recording.missed
    are_those(recording, met)


def test_a_large_mask_of_inference_mode_that_layers_share_is_split_once(monkeypatch):
    monkeypatch.setattr(mask_structure, "ENTRIES", 3)
    split, original = [], mask_structure._parts
    monkeypatch.setattr(
        mask_structure, "_parts", lambda mask, seen: split.append(mask) or original(mask, seen)
    )

    def attend(query, key):
        hidden = torch.rand(N, M) < 0.4
        return sum((query @ key.mT).masked_fill(hidden, -1e9).softmax(-1) @ key for _ in range(3))

    with torch.inference_mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    assert len(recording) == 3
    assert len(split) == 1
    assert recording[0].causes.mask is recording[2].causes.mask


UNCOUNTED = {
    "multiply_": lambda table: table[ROW].multiply_(2),
    "subtract_": lambda table: table[ROW].subtract_(table.mean()),
    "a view's": lambda table: table.mT[:, ROW].add_(table[ROW].flip(0)),
    "mul_": lambda table: table[ROW].mul_(2),
}
VIEWS = {"itself": lambda table: table, "mT": lambda table: table.mT, "T": lambda table: table.T}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("change", UNCOUNTED)
def test_a_table_of_before_inference_mode_whose_changes_it_does_not_count(change, view):
    """Operations that consist of others come to a mode past what counts changes."""
    table, met = torch.rand(MANY, MANY), []

    def attend(query, key):
        output = 0
        for _ in range(2):  # the second layer uses what it has become
            met.append((query @ key.mT / 2 + VIEWS[view](table)).softmax(-1))
            UNCOUNTED[change](table)
            output = output + met[-1] @ key
        return output

    with torch.inference_mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, MANY, WIDTH))
    assert not recording.missed
    are_those(recording, met)


def test_queries_and_keys_of_before_inference_mode():
    """A model may have a cache that was made outside of it, and read it by such a view."""
    asked, room, met = torch.randn(1, H, D, MANY), torch.randn(1, H, MANY, D), []

    def attend(query, key):
        met.append((asked.mT @ room.mT / 2).softmax(-1))
        asked[..., ROW].multiply_(2)
        return met[0] @ key

    with torch.inference_mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, MANY, WIDTH))
    shows(recording, met[0])


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_one_bias_that_hides_in_one_layer_and_counts_in_another(mode):
    """Where scores reach as far as its low numbers, these are no mask: the bias has them."""
    bias, met = torch.rand(MANY, MANY), []
    bias[ROW, MANY // 2 :] = -1e4

    def attend(query, key):
        output = 0
        for factor in (1.0, 1e4):
            met.append(((query * factor) @ key.mT + bias).softmax(-1))
            output = output + met[-1] @ key
        return output

    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, MANY, WIDTH))
    are_those(recording, met, atol=1e-3, rtol=0)


def test_a_mask_of_a_kernel_that_changes_between_layers_of_inference_mode():
    table, met = torch.rand(MANY, MANY), []

    def attend(query, key):
        output = 0
        for _ in range(2):
            met.append((query @ key.mT * D**-0.5 + table.mT).softmax(-1))
            output = output + scaled_dot_product_attention(query, key, key, attn_mask=table.mT)
            table.mT[ROW].multiply_(3)
        return output

    with torch.inference_mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, MANY, WIDTH))
    are_those(recording, met)


def test_a_mask_that_changes_as_inference_mode_begins():
    table, met = torch.rand(MANY, MANY), []

    def attend(query, key):
        output = 0
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                met.append((query @ key.mT / 2 + table).softmax(-1))
                output = output + met[-1] @ key
            with torch.inference_mode():
                table[ROW].multiply_(3)
        return output

    with torch.no_grad(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, MANY, WIDTH))
    are_those(recording, met)


CAUSAL = torch.ones(MANY, MANY).tril() == 0
SHARED = {
    "a bias, then a mask": lambda scores, table: (scores + table).masked_fill(CAUSAL, -torch.inf),
    "a mask, then a bias": lambda scores, table: scores.masked_fill(CAUSAL, -1e9) + table,
    "a bias and a number": lambda scores, table: scores + table + 1.0,
    "a bias less the highest": lambda scores, table: (
        (made := scores + table) - made.amax(-1, keepdim=True)
    ),
    "a bias alone": lambda scores, table: scores + table,
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("way", SHARED)
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_bias_that_layers_share_and_change_between_them(is_changed, way, mode):
    """Below Python it has another name in each layer, which counts no changes."""
    table, met = torch.rand(MANY, MANY), []

    def attend(query, key):
        output = 0
        for _ in range(3):
            met.append(SHARED[way](query @ key.mT / 2, table).softmax(-1))
            output = output + met[-1].detach() @ key
            if is_changed:
                table[ROW].mul_(3)
        return output

    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, MANY, WIDTH))
    assert len(recording) == 3
    are_those(recording, met)
    if not is_changed and recording[0].causes.bias is not None:  # kept once
        first, last = recording[0].causes.bias, recording[2].causes.bias
        assert first.data_ptr() == last.data_ptr()


def test_one_mask_in_two_modes_and_two_senses():
    hidden, met = torch.rand(N, M) < 0.4, []
    hidden[:, 0], hidden[:, 1] = False, True

    def attend(query, key):
        scores = query @ key.mT / 2
        met.append(torch.where(hidden, scores, -torch.inf).softmax(-1))
        with torch.inference_mode():
            met.append((query @ key.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1))
            return met[0] @ key + met[1] @ key

    with torch.no_grad(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    are_those(recording, met)


def test_a_softmax_of_inference_mode_whose_weights_meet_values_outside_of_it():
    table, met = torch.rand(MANY, MANY), []

    def attend(query, key):
        output = 0
        for _ in range(2):
            with torch.inference_mode():
                met.append((query @ key.mT / 2 + table).softmax(-1))
                table[ROW].multiply_(3)
            output = output + met[-1] @ key
        return output

    with torch.no_grad(), heedful.record(model := Heads(attend)) as recording:
        model(torch.randn(1, MANY, WIDTH))
    are_those(recording, met)
