"""Tables that a model changes in place: what is shown is what each layer used, or is missed.

torch counts the changes of a tensor, but not in inference mode: what is used there is copied.
"""

import pytest
import torch
from shown_maps import WIDTH, D, H, Heads, N, shows
from torch.nn.functional import scaled_dot_product_attention

import heedful

MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]
MANY, ROW = 70, 3  # rows, and one that is not among those that are compared
CHANGED = "changed in place"


def recorded(attend, mode, *lengths):
    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(*(torch.randn(1, length, WIDTH) for length in lengths or (MANY,)))
    return recording


def are_those(recording, met, **bounds):
    """The calls of one text have these weights, (1, H, N, M) each."""
    assert recording.missed == {}
    for call, expected in zip(recording, met, strict=True):
        torch.testing.assert_close(call.weights().detach(), expected[0].detach(), **bounds)


def kept(scores, table, hidden):
    table.copy_(~hidden)
    return scores * table - 1e9 * (1 - table)


def with_low_numbers(scores, table, hidden):
    """All scores of one row are low, and have weights."""
    hidden = hidden.clone()
    hidden[ROW] = True
    return torch.where(hidden, table.mul_(-2e4), scores)


TABLES = {
    "a mask that multiplies": kept,
    "a bias before the scores": lambda scores, table, _: table + scores,
    "low numbers": with_low_numbers,
    "a mask": lambda scores, _, hidden: scores.masked_fill(hidden, -torch.inf),
    "a mask in the opposite sense": lambda scores, _, hidden: torch.where(~hidden, scores, -1e9),
    "a sink": lambda scores, table, _: torch.cat(
        [scores, table[:, :1].expand(*scores.shape[:-1], 1)], dim=-1
    ),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("way", TABLES)
def test_a_table_that_changes_before_its_values_are_met(way, mode):
    """In a row that is not compared; a table of this size is not copied."""
    met = []

    def attend(query, key):
        table, hidden = torch.rand(MANY, MANY) + 0.5, torch.rand(MANY, MANY) < 0.4
        hidden[:, 0] = False
        met.append(TABLES[way](query @ key.mT / 2, table, hidden).softmax(-1)[..., :MANY])
        table[ROW], hidden[ROW, 1:] = table[ROW].flip(0) + 1, ~hidden[ROW, 1:]
        return met[0] @ key

    recording = recorded(attend, mode)
    if mode is torch.inference_mode or not recording.missed:
        are_those(recording, met)
    else:
        assert CHANGED in recording.missed["Heads"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_becomes_of_queries_and_keys_after_their_call_is_no_matter(mode):
    """Also with keys of a cache that was made outside of inference mode."""
    room, met = torch.randn(1, H, 1100, D), []

    def attend(query, key):
        query = query.mul(1.5).contiguous()
        met.append((query @ room.mT / 2).softmax(-1))
        output = met[0] @ key
        query.zero_()
        room.mT.multiply_(2)
        return output

    shows(recorded(attend, mode, N, 1100), met[0], proof="proved")


CHANGES = {
    "mul_": lambda table: table[ROW].mul_(2),
    "multiply_": lambda table: table.mT[:, ROW].multiply_(2),  # which consists of others
    "none": lambda table: None,
}
CAUSAL = torch.ones(MANY, MANY).tril() == 0
SHARED = {
    "a bias": lambda scores, table: scores + table,
    "a bias, then a mask": lambda scores, table: (scores + table).masked_fill(
        CAUSAL[: len(table), : len(table)], -torch.inf
    ),
    "a bias less the highest": lambda scores, table: (
        (made := scores + table) - made.amax(-1, keepdim=True)
    ),
    "a mask": lambda scores, table: scores.masked_fill(table > 1.2, -torch.inf),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", SHARED)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [40, MANY])
def test_a_table_that_layers_share_and_change_between_them(rows, change, way, mode):
    """It is made outside of inference mode, where torch counts changes; there it does not."""
    table, met = torch.rand(rows, rows) + 0.5, []

    def attend(query, key):
        output = 0
        for _ in range(3):
            met.append(SHARED[way](query @ key.mT / 2, table).softmax(-1).nan_to_num(0.0))
            output = output + met[-1].detach() @ key
            CHANGES[change](table)
        return output

    recording = recorded(attend, mode, rows)
    if recording.missed and rows == MANY:  # of a small table each layer has a copy
        assert CHANGED in recording.missed["Heads"]
        return
    are_those(recording, met)
    first, last = recording[0].causes.bias, recording[2].causes.bias
    if change == "none" and first is not None:
        assert first.data_ptr() == last.data_ptr()  # kept once


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_boolean", [False, True])
def test_a_mask_of_a_kernel_that_changes_between_layers(is_boolean, mode):
    table, given = torch.rand(MANY, MANY), []

    def attend(query, key):
        output = 0
        for _ in range(2):
            mask = table.mT > 0.5 if is_boolean else table.mT
            added = torch.zeros(MANY, MANY).masked_fill(~mask, -torch.inf) if is_boolean else mask
            given.append([query, key, added.clone()])
            output = output + scaled_dot_product_attention(query, key, key, attn_mask=mask)
            table.mT[ROW].multiply_(3)
        return output

    recording = recorded(attend, mode)
    met = [(query @ key.mT * D**-0.5 + bias).softmax(-1) for query, key, bias in given]
    are_those(recording, met)
