"""A walk as a page and as JSON have it: the library's own numbers, and what was left out."""

import json

import numpy as np
import pytest
import torch
from walks import walk

from heedful.explain import document_004
from heedful.views.explorer.wire import unpacked
from heedful.views.walk import page_data
from heedful.views.walk.page_data import as_bytes, as_data

KINDS = ("gpt", "convolved", "grouped", "bert", "seq2seq")


def kept(one):
    rows, columns = one["shape"][-2:]
    return one.get("rows", list(range(rows))), one.get("columns", list(range(columns)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_and_every_formula_is_the_librarys(kind):
    found = walk(kind, layer=1, head=2)
    (head, arrays), stages = unpacked(as_bytes(found)), [*found.stages]
    assert [one["name"] for one in head["stages"][: len(stages)]] == [s.name for s in stages]
    for i, stage in enumerate(stages):
        one = head["stages"][i]
        rows, columns = kept(one)
        numbers = arrays[f"numbers {i}"]
        np.testing.assert_array_equal(numbers, stage.part(rows, columns).float().numpy())
        assert one["formula"] == stage.formula
        assert one["sentence"] == stage.sentence
        for names, others in (("factors", stage.factors or ()), ("sources", stage.sources)):
            assert [head["stages"][at]["name"] for at in one[names]] == [s.name for s in others]
        if stage.how is not None:
            check_formula(stage, one, arrays, i, rows, columns)
    likely = [one.token for one in found.answers[-1].likeliest]
    [logits] = [one for one in head["stages"] if one["name"] == "logits"]
    assert logits["names"][: len(likely)] == likely
    assert head["answers"][-1]["likeliest"][0]["token"] == likely[0]


def check_formula(stage, one, arrays, i, rows, columns):
    """The formula of the last number that is kept."""
    made = stage.how(len(arrays[f"numbers {i}"]) - 1 if len(one["shape"]) > 2 else 0,
                     rows[-1], columns[-1])  # fmt: skip
    which = arrays[f"which {i}"].flat[-1] if f"which {i}" in arrays else 0
    numbers = arrays[f"formulas {i}"].reshape(-1, arrays[f"formulas {i}"].shape[-1])[-1]
    text = one["texts"][which]
    if made.numbers:
        assert text == made.text
        np.testing.assert_allclose(numbers, made.numbers, rtol=1e-6)
    else:
        assert text.format(*map(int, numbers)).replace("{", "") == made.text


def test_what_is_too_large_keeps_its_first_and_its_last():
    found = walk("gpt", count=90)
    data = as_bytes(found, room=60_000)
    head, arrays = unpacked(data)
    numbers = sum(array.nbytes for array in arrays.values())
    assert numbers <= 60_000
    [weights] = [one for one in head["stages"] if one["name"] == "weights"]
    rows = weights["rows"]
    assert rows[0] == 0
    assert rows[-1] == 89
    assert len(rows) < 90
    i = head["stages"].index(weights)
    expected = found.stage("weights").part(rows, weights["columns"])
    np.testing.assert_array_equal(arrays[f"numbers {i}"], expected.numpy())


def test_what_is_read_from_another_section_is_there_too():
    """The states that come to an opened block are of no section: the page needs their numbers."""
    found = walk("gpt", layer=1)
    head, arrays = unpacked(as_bytes(found))
    at = len(found.stages)
    assert [one["name"] for one in head["stages"][at:]] == ["states"]
    assert head["section"][at:] == [None]
    assert f"numbers {at}" in arrays


def test_document_004s_printed_numbers():
    found = document_004()
    weights = found.stage("weights").numbers()
    printed = [[1.0, 0.0, 0.0], [0.4059, 0.5941, 0.0], [0.3368, 0.4165, 0.2468]]
    torch.testing.assert_close(weights.float(), torch.tensor(printed), atol=5e-5, rtol=0)
    table = found.stage("positions").numbers()
    assert table.shape == (16, 64)
    row = [0.841471, 0.540302, 0.681561, 0.731761, 0.533168, 0.846009, 0.409309, 0.912396]
    np.testing.assert_allclose(table[1, :8], row, atol=5e-7)
    np.testing.assert_allclose(table[1, 60:], [0.000178, 1.0, 0.000133, 1.0], atol=5e-7)


@pytest.mark.parametrize("kind", ["grouped", "seq2seq"])
def test_all_of_a_walk_is_json(kind):
    found = walk(kind, layer=1)
    data = json.loads(json.dumps(as_data(found)))
    assert [group["title"] for group in data["groups"]] == [s.title for s in found.sections]
    assert [step["name"] for step in data["steps"]] == [stage.name for stage in found.stages]
    for step, stage in zip(data["steps"], found.stages, strict=True):
        assert step["name"] in data["groups"][step["group"]]["steps"]
        assert step["shape"] == list(stage.shape)
        assert step["chain"] == [list(shape) for shape in stage.chain]
        assert step["factors"] == [factor.name for factor in stage.factors or ()]
        shown = stage.part(*step["indices"])
        numbers = torch.tensor(np.array(step["numbers"], float)).nan_to_num(-torch.inf)
        torch.testing.assert_close(numbers, shown.double(), check_dtype=False)
        if stage.rows != "width" and stage.columns != "id":
            assert step["written_out"] is None or " = " in step["written_out"]
    assert data["answers"][-1]["likeliest"][0]["token"] == found.answers[-1].likeliest[0].token
    probabilities = data["steps"][-1]
    assert probabilities["labels"] == list(found.vocabulary[: len(found.vocabulary)])
    assert sum(probabilities["numbers"][2]) == pytest.approx(1.0, abs=1e-5)


def test_a_followed_token_has_its_rows_and_its_answer():
    found = walk("gpt")
    data = as_data(found, found.places("and"))
    [answer] = data["answers"]
    assert (answer["place"], answer["token"]) == (3, "and")
    steps = {step["name"]: step for step in data["steps"]}
    assert steps["inner"]["indices"][0] == [3]
    assert len(steps["rotated key"]["numbers"][0]) == 7
    assert len(steps["rotated query"]["numbers"][0]) == 1


def test_large_steps_are_given_at_their_corners(monkeypatch):
    found = walk("gpt", 20)
    monkeypatch.setattr(page_data, "WHOLE", 1_000)
    monkeypatch.setattr(page_data, "TABLE", 100)
    steps = {step["name"]: step for step in as_data(found)["steps"]}
    corner = [0, 1, 2, 3, 4, 5, 18, 19]
    assert steps["weights"]["indices"] == [corner, corner]
    expected = found.stage("weights").part(corner, corner)
    torch.testing.assert_close(torch.tensor(steps["weights"]["numbers"]), expected)
    assert not steps["W_query"]["whole"]
    assert steps["embeddings"]["whole"]
