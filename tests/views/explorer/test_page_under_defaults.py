"""What a process makes its default type and device changes no number of the page."""

import pytest
import torch
from every_kind import MADE
from process_defaults import default_elsewhere, default_type

from heedful.views.explorer.answers import Answers
from heedful.views.explorer.contents import Contents
from heedful.views.explorer.texts import Texts

KINDS = ("biased", "capped", "cross", "padded", "sinks")
QUESTIONS = {
    "small": {},
    "scores": {},
    "row": {"heads": "0", "at": "2"},
    "column": {"heads": "0", "at": "1"},
    "cell": {"head": "0", "query": "2", "key": "1"},
}


def told(recording):
    """All of a file, and some answers of a server."""
    texts = Texts({"a": recording})
    answers = Answers(texts)
    asked = [answers.ask(name, {"call": "0.0.0", **words}) for name, words in QUESTIONS.items()]
    contents = Contents(texts, 40_000, 16, lambda share: None)
    inputs = [contents.inputs[of].parts(place) for of, place, _ in contents.heads]
    return [contents.deflated({}), *inputs, *asked]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, None])
@pytest.mark.parametrize("of", KINDS)
def test_another_default_changes_nothing(of, kind):
    recording = MADE[of]()
    expected = told(recording)
    with default_elsewhere() if kind is None else default_type(kind):
        found = told(recording)
    assert found == expected
