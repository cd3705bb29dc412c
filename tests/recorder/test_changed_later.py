"""Tables that a model changes in place: a recording has the version of each layer, or misses it.

torch counts the changes of a tensor, but not in inference mode, where tables are copied.
"""

import pytest
import torch
from shown_maps import WIDTH, D, H, Heads, N, shows
from torch.nn.functional import scaled_dot_product_attention

import heedful

MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]
MANY, ROW = 70, 3  # number of rows, and a row that the check does not compare
CHANGED = "changed in place"


def recorded(attend, mode, *lengths):
    with mode(), heedful.record(model := Heads(attend)) as recording:
        model(*(torch.randn(1, length, WIDTH) for length in lengths or (MANY,)))
    return recording


def are_those(recording, model_maps, **bounds):
    """Check the weights of the calls of one text, (1, H, N, M) each."""
    assert recording.missed == {}
    for call, expected in zip(recording, model_maps, strict=True):
        torch.testing.assert_close(call.weights().detach(), expected[0].detach(), **bounds)


def multiplied(scores, table, hidden):
    table.copy_(~hidden)
    return scores * table - 1e9 * (1 - table)


def with_low_numbers(scores, table, hidden):
    """All scores of one row are low, but not masked."""
    hidden = hidden.clone()
    hidden[ROW] = True
    return torch.where(hidden, table.mul_(-2e4), scores)


TABLES = {
    "a mask that multiplies": multiplied,
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
def test_a_table_that_changes_before_the_product_with_values(way, mode):
    """The change is in a row that is not compared; a table of this size is not copied."""
    model_maps = []

    def attend(query, key):
        table, hidden = torch.rand(MANY, MANY) + 0.5, torch.rand(MANY, MANY) < 0.4
        hidden[:, 0] = False
        model_maps.append(TABLES[way](query @ key.mT / 2, table, hidden).softmax(-1)[..., :MANY])
        table[ROW], hidden[ROW, 1:] = table[ROW].flip(0) + 1, ~hidden[ROW, 1:]
        return model_maps[0] @ key

    recording = recorded(attend, mode)
    if mode is torch.inference_mode or not recording.missed:
        are_those(recording, model_maps)
    else:
        assert CHANGED in recording.missed["Heads"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_later_changes_of_queries_and_keys_have_no_effect(mode):
    room, model_maps = torch.randn(1, H, 1100, D), []

    def attend(query, key):
        query = query.mul(1.5).contiguous()
        model_maps.append((query @ room.mT / 2).softmax(-1))
        output = model_maps[0] @ key
        query.zero_()
        room.mT.multiply_(2)
        return output

    shows(recorded(attend, mode, N, 1100), model_maps[0], proof="proved")


CHANGES = {
    "mul_": lambda table: table[ROW].mul_(2),
    "multiply_": lambda table: table.mT[:, ROW].multiply_(2),  # a composite operation
    "none": lambda table: None,
}
CAUSAL = torch.ones(MANY, MANY).tril() == 0
SHARED = {
    "a bias": lambda scores, table: scores + table,
    "a bias, then a mask": lambda scores, table: (scores + table).masked_fill(
        CAUSAL[: len(table), : len(table)], -torch.inf
    ),
    "a bias less the highest": lambda scores, table: (
        (result := scores + table) - result.amax(-1, keepdim=True)
    ),
    "a mask": lambda scores, table: scores.masked_fill(table > 1.2, -torch.inf),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", SHARED)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [40, MANY])
def test_a_table_that_layers_share_and_change_between_them(rows, change, way, mode):
    """Outside of inference mode, torch counts the changes; inside it does not."""
    table, model_maps = torch.rand(rows, rows) + 0.5, []

    def attend(query, key):
        output = 0
        for _ in range(3):
            model_maps.append(SHARED[way](query @ key.mT / 2, table).softmax(-1).nan_to_num(0.0))
            output = output + model_maps[-1].detach() @ key
            CHANGES[change](table)
        return output

    recording = recorded(attend, mode, rows)
    if recording.missed and rows == MANY:  # each layer has a copy of a small table
        assert CHANGED in recording.missed["Heads"]
        return
    are_those(recording, model_maps)
    first, last = recording[0].causes.bias, recording[2].causes.bias
    if change == "none" and first is not None:
        assert first.data_ptr() == last.data_ptr()  # stored once


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_boolean", [False, True])
def test_a_mask_of_a_kernel_that_changes_between_layers(is_boolean, mode):
    table, inputs = torch.rand(MANY, MANY), []

    def attend(query, key):
        output = 0
        for _ in range(2):
            mask = table.mT > 0.5 if is_boolean else table.mT
            added = torch.zeros(MANY, MANY).masked_fill(~mask, -torch.inf) if is_boolean else mask
            inputs.append([query, key, added.clone()])
            output = output + scaled_dot_product_attention(query, key, key, attn_mask=mask)
            table.mT[ROW].multiply_(3)
        return output

    recording = recorded(attend, mode)
    model_maps = [(query @ key.mT * D**-0.5 + bias).softmax(-1) for query, key, bias in inputs]
    are_those(recording, model_maps)
