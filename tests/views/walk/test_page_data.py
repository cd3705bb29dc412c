"""The data of a walk, for the page and as JSON: numbers equal the library's, within size limits."""

import json

import numpy as np
import pytest
import torch
from explained_models import walk

from heedful.explain import document_004
from heedful.views.explorer.wire import unpacked
from heedful.views.walk import page_data
from heedful.views.walk.page_data import as_data, packed_walk

KINDS = ("gpt", "convolved", "grouped", "bert", "seq2seq")


def stored_indices(entry):
    rows, columns = entry["shape"][-2:]
    return entry.get("rows", list(range(rows))), entry.get("columns", list(range(columns)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_and_every_formula_is_the_librarys(kind):
    explanation = walk(kind, layer=1, head=2)
    (head, arrays), stages = unpacked(packed_walk(explanation)), [*explanation.stages]
    assert [entry["name"] for entry in head["stages"][: len(stages)]] == [s.name for s in stages]
    for i, stage in enumerate(stages):
        entry = head["stages"][i]
        rows, columns = stored_indices(entry)
        numbers = arrays[f"numbers {i}"]
        np.testing.assert_array_equal(numbers, stage.part(rows, columns).float().numpy())
        assert entry["formula"] == stage.formula
        assert entry["sentence"] == stage.sentence
        for names, others in (("factors", stage.factors or ()), ("sources", stage.sources)):
            assert [head["stages"][j]["name"] for j in entry[names]] == [s.name for s in others]
        if stage.number_formula is not None:
            check_formula(stage, entry, arrays, i, rows, columns)
    likely = [token.token for token in explanation.answers[-1].likeliest]
    [logits] = [entry for entry in head["stages"] if entry["name"] == "logits"]
    assert logits["names"][: len(likely)] == likely
    assert head["answers"][-1]["likeliest"][0]["token"] == likely[0]


def check_formula(stage, entry, arrays, i, rows, columns):
    """Compare the formula of the last stored number."""
    head = len(arrays[f"numbers {i}"]) - 1 if len(entry["shape"]) > 2 else 0
    formula = stage.number_formula(head, rows[-1], columns[-1])
    which = arrays[f"which {i}"].flat[-1] if f"which {i}" in arrays else 0
    numbers = arrays[f"formulas {i}"].reshape(-1, arrays[f"formulas {i}"].shape[-1])[-1]
    text = entry["texts"][which]
    if formula.numbers:
        assert text == formula.text
        np.testing.assert_allclose(numbers, formula.numbers, rtol=1e-6)
    else:
        assert text.format(*map(int, numbers)).replace("{", "") == formula.text


def test_the_first_and_last_rows_of_a_large_stage_are_stored():
    explanation = walk("gpt", count=90)
    data = packed_walk(explanation, room=60_000)
    head, arrays = unpacked(data)
    numbers = sum(array.nbytes for array in arrays.values())
    assert numbers <= 60_000
    [weights] = [entry for entry in head["stages"] if entry["name"] == "weights"]
    rows = weights["rows"]
    assert rows[0] == 0
    assert rows[-1] == 89
    assert len(rows) < 90
    i = head["stages"].index(weights)
    expected = explanation.stage("weights").part(rows, weights["columns"])
    np.testing.assert_array_equal(arrays[f"numbers {i}"], expected.numpy())


def test_inputs_outside_all_sections_are_stored():
    """The input states of the block that is shown belong to no section, but the page needs them."""
    explanation = walk("gpt", layer=1)
    head, arrays = unpacked(packed_walk(explanation))
    start = len(explanation.stages)
    assert [entry["name"] for entry in head["stages"][start:]] == ["states"]
    assert head["section"][start:] == [None]
    assert f"numbers {start}" in arrays


def test_document_004s_printed_numbers():
    explanation = document_004()
    weights = explanation.stage("weights").numbers()
    printed = [[1.0, 0.0, 0.0], [0.4059, 0.5941, 0.0], [0.3368, 0.4165, 0.2468]]
    torch.testing.assert_close(weights.float(), torch.tensor(printed), atol=5e-5, rtol=0)
    table = explanation.stage("positions").numbers()
    assert table.shape == (16, 64)
    row = [0.841471, 0.540302, 0.681561, 0.731761, 0.533168, 0.846009, 0.409309, 0.912396]
    np.testing.assert_allclose(table[1, :8], row, atol=5e-7)
    np.testing.assert_allclose(table[1, 60:], [0.000178, 1.0, 0.000133, 1.0], atol=5e-7)


@pytest.mark.parametrize("kind", ["grouped", "seq2seq"])
def test_all_of_a_walk_is_json(kind):
    explanation = walk(kind, layer=1)
    data = json.loads(json.dumps(as_data(explanation)))
    assert [group["title"] for group in data["groups"]] == [s.title for s in explanation.sections]
    assert [step["name"] for step in data["steps"]] == [stage.name for stage in explanation.stages]
    for step, stage in zip(data["steps"], explanation.stages, strict=True):
        assert step["name"] in data["groups"][step["group"]]["steps"]
        assert step["shape"] == list(stage.shape)
        assert step["chain"] == [list(shape) for shape in stage.chain]
        assert step["factors"] == [factor.name for factor in stage.factors or ()]
        expected = stage.part(*step["indices"])
        numbers = torch.tensor(np.array(step["numbers"], float)).nan_to_num(-torch.inf)
        torch.testing.assert_close(numbers, expected.double(), check_dtype=False)
        if stage.rows != "width" and stage.columns != "id":
            assert step["written_out"] is None or " = " in step["written_out"]
    assert (
        data["answers"][-1]["likeliest"][0]["token"] == explanation.answers[-1].likeliest[0].token
    )
    probabilities = data["steps"][-1]
    assert probabilities["labels"] == list(explanation.vocabulary[: len(explanation.vocabulary)])
    assert sum(probabilities["numbers"][2]) == pytest.approx(1.0, abs=1e-5)


def test_data_of_a_token_have_its_rows_and_answer():
    explanation = walk("gpt")
    data = as_data(explanation, explanation.positions_of("and"))
    [answer] = data["answers"]
    assert (answer["place"], answer["token"]) == (3, "and")
    steps = {step["name"]: step for step in data["steps"]}
    assert steps["inner"]["indices"][0] == [3]
    assert len(steps["rotated key"]["numbers"][0]) == 7
    assert len(steps["rotated query"]["numbers"][0]) == 1


def test_large_steps_contain_their_corners(monkeypatch):
    explanation = walk("gpt", 20)
    monkeypatch.setattr(page_data, "WHOLE", 1_000)
    monkeypatch.setattr(page_data, "TABLE", 100)
    steps = {step["name"]: step for step in as_data(explanation)["steps"]}
    corner = [0, 1, 2, 3, 4, 5, 18, 19]
    assert steps["weights"]["indices"] == [corner, corner]
    expected = explanation.stage("weights").part(corner, corner)
    torch.testing.assert_close(torch.tensor(steps["weights"]["numbers"]), expected)
    assert not steps["W_query"]["whole"]
    assert steps["embeddings"]["whole"]
