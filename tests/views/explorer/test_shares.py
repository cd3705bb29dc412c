"""Who reads what, as a page asks for it: the numbers of `Call.segments`, at once or in steps."""

import every_kind
import numpy as np
import pytest

from heedful.errors import ArgumentError
from heedful.views.explorer import shares as of_shares
from heedful.views.explorer.answers import Answers
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.wire import unpacked

KINDS = ["causal", "windowed", "grouped", "padded", "cross", "generated", "sinks"]


@pytest.fixture(scope="module")
def recordings():
    return {kind: every_kind.MADE[kind]() for kind in KINDS}


def asking(recording, **options):
    answers = Answers(Texts({"one": recording}, **options))

    def ask(where, **words):
        return unpacked(answers.ask("segments", {"call": where, **words}))

    ask.answers = answers
    return ask


def expected(call, keys, queries):
    """What the library's table says, (H, A, B) and (H, A)."""
    found = call.segments(keys, queries=queries)
    from_ = list(dict.fromkeys(row.from_ for row in found))
    to = [name for name in dict.fromkeys(row.to for row in found) if name != "learned sink"]
    of = {(row.head, row.from_, row.to): row for row in found}
    parts = [[[of[head, a, b] for b in to] for a in from_] for head in call.heads]

    def numbers(name):
        as_rows = [[[getattr(row, name) for row in line] for line in one] for one in parts]
        return np.array(as_rows, dtype=float)

    return {"share": numbers("share"), "chance": numbers("chance"),
            "queries": numbers("queries")[..., 0]}  # fmt: skip


@pytest.mark.parametrize("in_steps", [False, True], ids=["at once", "in steps"])
@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_those_of_the_library(recordings, kind, in_steps, monkeypatch):
    if in_steps:
        monkeypatch.setattr(of_shares, "FEW", 0)
        monkeypatch.setattr(of_shares, "BAND", 20)
    ask = asking(recordings[kind])
    calls = ask.answers.texts._text(0, 0, None).calls
    call, where = calls[-1], f"0.0.{len(calls) - 1}"
    _, N, M = call.shape
    keys = {"first": slice(0, 2), "odd": [2, M - 1], "middle": [1, 3]}
    words = {"keys": f"0-2;2-3,{M - 1}-{M};1-2,3-4"}
    queries = None
    if call.crosses:
        queries, words["queries"] = {"late": slice(1, N)}, f"1-{N}"
    about, found = ask(where, **words)
    if in_steps:
        assert about["word"] != "exact"
        assert not found
        assert about["done"] == 0
        while ask.answers.background.work(iter([True, False]).__next__):
            about, found = ask(where, **words)
            assert about["word"] == "exact" or 0 < about["done"] < 1
    assert about["word"] == "exact"
    assert about["sinks"] == (kind == "sinks")
    true = expected(call, keys, queries)
    for name, numbers in true.items():
        np.testing.assert_allclose(found[name], numbers, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(found["keys"][:3], [2, 2, 2])


def test_what_is_marked_at_first_and_which_text_a_call_reads(recordings):
    about = asking(recordings["cross"], segments={"a": [0, 1, 3]}).answers.texts.about()
    [text] = about[0]["texts"]
    assert text["crosses"]
    assert text["marks"] == {"source": [{"name": "a", "runs": [[0, 2], [3, 4]]}], "target": []}
    reads = {call["kind"]: call["reads"] for call in text["calls"]}
    assert reads["cross"] == ["target", "source"]
    assert reads["causal"] == ["target", "target"]
    with pytest.raises(ArgumentError, match="token"):
        Texts({"one": recordings["causal"]}, segments={"a": [9999]})
