import json

import numpy as np
import pytest
import torch
from walks import walk

from heedful.views.walk import page_data
from heedful.views.walk.page_data import as_data


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
