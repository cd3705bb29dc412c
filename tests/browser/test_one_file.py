"""The page as one file, opened from the disk with the network off: its numbers are the library's,
or what it says of them holds."""

import re

import numpy as np
import pytest
from browsed import as_shown, number
from every_kind import long

from heedful.views.explorer import one_file
from heedful.views.explorer.answers import Answers
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.tiles import Place
from heedful.views.explorer.wire import unpacked
from heedful.views.offline_page import shell

ASK = """async ([question, about]) => {
  const element = document.getElementById("heedful");
  while (!element.source) await new Promise((soon) => setTimeout(soon, 10));
  const found = await element.source.ask(question, about);
  const plain = (one) => (one?.data ? { data: [...one.data].map(String), shape: one.shape } : one);
  return Object.fromEntries(Object.entries(found).map(([name, one]) => [name, plain(one)]));
}"""
KINDS = {
    "causal": ("causal", "", 1),
    "windowed": ("windowed", "", 0),
    "grouped": ("grouped", "", 1),
    "padded": ("padded", "text 2", 1),
    "cross": ("cross", "", 2),
    "stitched": ("generated", "as one", 1),
    "capped": ("capped", "", 0),
    "sinks": ("sinks", "", 0),
    "biased": ("biased", "", 0),
}


class Filed:
    """A page that was opened from a file, and can be asked as it asks itself."""

    def __init__(self, page, told):
        self.page, self.told = page, told

    def ask(self, question, **about):
        """Head and arrays of an answer."""
        found = self.page.page.evaluate(ASK, [question, about])
        arrays = {
            name: np.array([float(text.replace("Infinity", "inf")) for text in one["data"]])
            .reshape(one["shape"])
            for name, one in found.items()
            if isinstance(one, dict) and "data" in one
        }  # fmt: skip
        return {name: one for name, one in found.items() if name not in arrays}, arrays


@pytest.fixture
def filed(opened, tmp_path):
    """Write texts into a file, and open it."""

    def write(texts, **options):
        path = tmp_path / "page.html"
        told = one_file.write(path, texts, "a file", **options)
        return Filed(opened(path.as_uri(), "file://", offline=True), told)

    return write


def half(monkeypatch):
    """Files have queries and keys in half precision, however few they are."""
    monkeypatch.setattr(one_file, "FEW", 0)


def coarse(monkeypatch, size):
    """Files have no queries and keys, and room for so many bytes beside the page itself."""
    half(monkeypatch)
    page = sum(map(len, shell("", one_file.ENTRY, one_file.styles())))
    monkeypatch.setattr(one_file, "LEAST", page + size)


@pytest.mark.parametrize("exact", [False, True], ids=["single", "half"])
def test_every_answer_is_the_library_s(filed, served, places, monkeypatch, exact):
    if exact:
        half(monkeypatch)
    page, answers = filed(served.texts, exact=exact), Answers(served.texts)
    off = page.ask("about")[0]["file"]["difference"]
    assert (off > 1e-4) == exact
    for name, text, layer in KINDS.values():
        id_, call = places(name, text, layer)
        where, head = tuple(map(int, id_.split("."))), call.heads[-1]
        _, N, M = call.shape
        n, m = N - 2, M // 3
        for true, asked in (
            (answers.row(where, [head], n), ("row", {"heads": str(head), "at": n})),
            (answers.column(where, call.heads, m),
             ("column", {"heads": ",".join(map(str, call.heads)), "at": m})),
            (answers.part(where, head, range(N), range(M)),
             ("part", {"head": head, "queries": f"0-{N}", "keys": f"0-{M}"})),
            (answers.tile(where, Place(head, 0, 0, 0, "mean")),
             ("tile", {"place": f"{head},0,0,0", "reduce": "mean"})),
            (answers.tile(where, Place(head, 0, 0, 0, "max")),
             ("tile", {"place": f"{head},0,0,0", "reduce": "max"})),
            (answers.cell(where, head, n, m), ("cell", {"head": head, "query": n, "key": m})),
            (answers.scores(where), ("scores", {})),
            (answers.find(where, "keys", "A"), ("find", {"axis": "keys", "text": "A"})),
            (answers.tokens(where, "keys", 1, 5), ("tokens", {"axis": "keys", "start": 1,
                                                              "stop": 5})),
        ):  # fmt: skip
            about, arrays = unpacked(true)
            given, numbers = page.ask(asked[0], call=id_, **asked[1])
            assert numbers.keys() == arrays.keys()
            for key, array in arrays.items():
                if not (exact and key == "rivals"):  # half precision may change their order
                    within = (50 * off if exact else 1e-5) * max(
                        1, np.nan_to_num(np.abs(array)).max(initial=0)
                    )
                    np.testing.assert_allclose(numbers[key], array, atol=within, err_msg=asked[0])
            for key in ("hidden", "seen", "group", "tokens", "count", "kinds", "start"):
                assert about.get(key) == given.get(key), (name, asked[0], key)


def test_a_weight_that_was_computed_in_the_page_is_within_what_it_says(
    filed, served, places, monkeypatch
):
    half(monkeypatch)
    page = filed(served.texts, exact=True)
    within = float(re.search(r"within (\S+) of", page.told.said)[1])
    for name in ("causal", "sinks", "biased"):
        id_, call = places(*KINDS[name])
        weights = call.weights(1)
        query = call.shape[1] - 1
        key = int(weights[query].argmax())
        page.page.cell(id_, 1, query, key)
        assert as_shown(page.page.weight, float(weights[query, key]))  # it is among the largest
        said = page.page.region.inner_text()
        assert "exact; what follows is in half precision, within" in said
        name, computed = page.page.steps()[-1]
        assert name.startswith("exp(")
        assert abs(number(computed) - float(weights[query, key])) <= within + 1e-4


def test_what_is_not_in_the_file_is_bounded_and_said(filed, monkeypatch):
    coarse(monkeypatch, 175_000)
    recording = long(700)
    page, [call] = filed(Texts({"long": recording})), recording
    assert "8 largest weights of every row" in page.told.said
    weights = call.weights(1)
    query = 500
    order = weights[query].argsort(descending=True)
    page.page.cell("0.0.0", 1, query, int(order[3]))
    assert as_shown(page.page.weight, float(weights[query, order[3]]))
    assert "exact, 4th in its row" in page.page.region.inner_text()
    page.page.cell("0.0.0", 1, query, int(order[20]))
    bound = re.fullmatch(r"≤ ([\d.]+)", page.page.weight)
    assert float(weights[query, order[20]]) <= float(bound[1])
    assert float(bound[1]) <= 1.2 * float(weights[query, order[7]])
    said = page.page.region.inner_text()
    assert "Not in this file: below the 8 largest of its row, so at most" in said
    page.page.cell("0.0.0", 1, query, query + 1)
    assert page.page.weight == "hidden"


def largest_of(page, at):
    """What a file has of a row: the sum of its largest weights, 0 where it has none."""
    return np.nansum(page.ask("row", call="0.0.0", heads="0", at=at)[1]["weights"])


def test_no_number_of_a_coarse_file_is_below_the_true_one(filed, monkeypatch):
    coarse(monkeypatch, 145_000)
    recording = long(900)
    page, [call] = filed(Texts({"long": recording})), recording
    weights = call.weights(0).double().numpy()
    hidden = np.triu(np.ones((900, 900), bool), 1)
    given, numbers = page.ask("tile", call="0.0.0", place="0,0,1,0", reduce="max")
    part = np.s_[256:512, 0:256]
    assert given["bounds"]
    assert np.array_equal(np.isnan(numbers["tile"]), hidden[part])
    seen = ~hidden[part]
    assert (numbers["tile"][seen] >= weights[part][seen] - 1e-6).all()
    here = next(at for at in range(600, 700) if largest_of(page, at))  # the file has some rows
    _, row = page.ask("row", call="0.0.0", heads="0", at=here)
    known = ~np.isnan(row["weights"])
    np.testing.assert_allclose(row["weights"][known], weights[here][known], atol=1e-6)
    assert 8 <= known.sum() - (900 - here - 1) <= 9
    given, _ = page.ask("row", call="0.0.0", heads="0", at=here)
    assert weights[here][~known].max() <= given["atMost"]
    given, row = page.ask("row", call="0.0.0", heads="0,1", at=here)
    mean, known = call.weights()[:, here].mean(0), ~np.isnan(row["weights"])
    assert 0 < known.sum() < 900
    np.testing.assert_allclose(row["weights"][known], mean[known], atol=1e-6)
    assert "largest" in given["word"]
    lacking = next(at for at in range(500, 600) if not largest_of(page, at))
    page.page.cell("0.0.0", 0, lacking, 3)
    profile = page.page.page.get_by_role("region", name="Profile")
    page.page.soon(lambda: _holds("none of its weights is in this file", profile.inner_text()))
    both = call.weights(queries=[here]).double().mean(0)[0].numpy()  # of two heads
    given, mean = page.ask("row", call="0.0.0", heads="0,1", at=here)
    unknown = np.isnan(mean["weights"])
    assert unknown.any()
    assert both[unknown].max() <= given["atMost"] + 1e-7
    bounds = [page.ask("row", call="0.0.0", heads=h, at=here)[0]["atMost"] for h in "01"]
    assert given["atMost"] != pytest.approx(max(bounds))  # a key that one head has counts, too
    strongest, _ = page.ask("strongest", call="0.0.0", head=0, queries="0-900", keys="0-900",
                            count=3)  # fmt: skip
    assert strongest["word"] == "of the largest of chosen rows"
    assert len(strongest["cells"]) == 3
    for weight, query, key in strongest["cells"]:
        assert weight == pytest.approx(weights[query, key], abs=1e-6)
    given, _ = page.ask("tile", call="0.0.0", place="0,2,0,0", reduce="mean")
    assert given["word"] == "mean of 8 × 8, all that this file has"
    given, tile = page.ask("tile", call="0.0.0", place="0,3,0,0", reduce="mean")
    assert given["word"] == "half precision"
    shown = ~np.isnan(tile["tile"])
    true = call.pooled((8, 8), 0).numpy()
    assert shown.sum() == (113 * 114) // 2
    np.testing.assert_allclose(tile["tile"][shown], true[shown], rtol=2e-3)


def test_what_a_file_cannot_do_it_says(filed, served):
    page = filed(served.texts)
    with pytest.raises(Exception, match="A file cannot do this"):
        page.ask("record", text="a")


def test_the_case_of_a_text_that_is_sought(filed):
    recording = long(12)
    names = ["Straße", "ΟΔΟΣ", "οδός", "İstanbul", "ﬁn", "a", "B", "ß", "SS", "ς", "σ", "no"]
    recording.tokens = [names]
    texts = Texts({"a": recording})
    page, answers = filed(texts), Answers(texts)
    for asked in ("ss", "STRASSE", "οδος", "Σ", "FIN", "b", "ẞ"):
        true = unpacked(answers.find((0, 0, 0), "keys", asked))[1]["places"]
        assert page.ask("find", call="0.0.0", axis="keys", text=asked)[1]["places"].tolist() == (
            true.tolist()
        ), asked


def _holds(part, text):
    assert part in text
