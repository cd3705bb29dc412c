"""The one-file page, opened from disk without a network: its numbers equal the library's within the
precision that it reports."""

import re

import numpy as np
import pytest
from page_reader import KINDS, as_shown
from small_recordings import long

from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.handlers import Handlers
from heedful.views.explorer.wire import unpacked

LIMIT = 0.48  # MB; enough for query and key of one of two heads
ASK = """async ([question, about]) => {
  const element = document.getElementById("heedful");
  while (!element.source) await new Promise((soon) => setTimeout(soon, 10));
  const answer = await element.source.ask(question, about);
  const plain = (v) => (v?.data ? { data: [...v.data].map(String), shape: v.shape } : v);
  return Object.fromEntries(Object.entries(answer).map(([name, value]) => [name, plain(value)]));
}"""


class Filed:
    """A page opened from a file, and a way to ask its source."""

    def __init__(self, page, report):
        self.page, self.report = page, report

    def ask(self, question, **about):
        """The header and the arrays of an answer."""
        answer = self.page.page.evaluate(ASK, [question, about])
        arrays = {
            name: np.array([float(text.replace("Infinity", "inf")) for text in value["data"]])
            .reshape(value["shape"])
            for name, value in answer.items()
            if isinstance(value, dict) and "data" in value
        }  # fmt: skip
        return {name: value for name, value in answer.items() if name not in arrays}, arrays


@pytest.fixture
def filed(opened, tmp_path):
    """Write texts into a file and open it."""

    def write(texts, **options):
        path = tmp_path / "page.html"
        report = one_file.write(path, texts, "a file", **options)
        return Filed(opened(path.as_uri(), "file://", offline=True), report)

    return write


@pytest.mark.parametrize("bits", [32, 15])
def test_every_answer_is_the_library_s(filed, served, places, monkeypatch, bits):
    monkeypatch.setattr(one_file, "_bits", lambda *arguments: bits)
    page, handlers = filed(served.texts), Handlers(served.texts)
    off = page.ask("about")[0]["file"]["difference"]
    assert (off > 1e-6) == (bits < 32)
    for name, kind in KINDS.items():
        id_, call = places(*kind)
        head = call.heads[-1]
        _, N, M = call.shape
        n, m = max(0, N - 2), M // 3
        for question, words in (
            ("row", {"heads": head, "at": n}),
            ("column", {"heads": ",".join(map(str, call.heads)), "at": m}),
            ("part", {"head": head, "queries": f"0-{N}", "keys": f"0-{M}"}),
            ("tile", {"place": f"{head},0,0,0", "reduce": "mean"}),
            ("tile", {"place": f"{head},0,0,0", "reduce": "max"}),
            ("cell", {"head": head, "query": n, "key": m}),
            ("scores", {}),
            ("small", {}),
            ("find", {"axis": "keys", "text": "A"}),
            ("tokens", {"axis": "keys", "start": 1, "stop": 5}),
        ):
            texts = {name: str(word) for name, word in words.items()}
            about, arrays = unpacked(handlers.handle(question, {"call": id_, **texts}))
            header, numbers = page.ask(question, call=id_, **words)
            assert numbers.keys() == arrays.keys()
            for key, array in arrays.items():
                if not (bits < 32 and key == "rivals"):  # rounding may change their order
                    rough = 1e-3 if key == "maps" else 1e-5
                    within = max(rough, 50 * off) * max(
                        1, np.nan_to_num(np.abs(array)).max(initial=0)
                    )
                    np.testing.assert_allclose(numbers[key], array, atol=within, err_msg=question)
            for key in ("hidden", "seen", "group", "tokens", "count", "kinds", "start"):
                assert about.get(key) == header.get(key), (name, question, key)
        true = call.weights(head).flatten().sort(descending=True).values[:4].numpy()
        strongest, _ = page.ask("strongest", call=id_, head=head, queries=f"0-{N}",
                                keys=f"0-{M}", count=4)  # fmt: skip
        np.testing.assert_allclose([cell[0] for cell in strongest["cells"]], true,
                                   atol=max(1e-5, 3 * off))  # fmt: skip


def test_large_regions_are_sampled_and_reported_as_such(filed, monkeypatch):
    recording = long(5000)
    page, [call] = filed(Catalogue({"long": recording})), recording
    header, numbers = page.ask("tile", call="0.0.0", place="0,5,0,0", reduce="max")
    assert header["word"] == "from one query in 32"
    size = 32
    middles = [n + min(size, 5000 - n) // 2 for n in range(0, 5000, size)]
    rows = call.weights(0, queries=middles).numpy()
    true = np.maximum.reduceat(rows, np.arange(0, 5000, size), axis=1)
    seen = ~np.isnan(numbers["tile"])
    assert np.array_equal(seen, np.tril(np.ones_like(seen)))  # the mask is exact
    np.testing.assert_allclose(numbers["tile"][seen], true[seen], atol=1e-5)
    strongest, _ = page.ask("strongest", call="0.0.0", head=0, queries="0-5000", keys="0-5000",
                            count=3)  # fmt: skip
    assert strongest["word"] == "from one query in 2"
    for weight, query, key in strongest["cells"]:
        assert weight == pytest.approx(float(call.weights(0, [query], [key])), abs=1e-5)


def test_a_head_without_query_and_key_shows_its_small_picture(filed, monkeypatch):
    """The head with the higher scores has query and key; the other's picture is an upper bound."""
    recording = long(700)
    monkeypatch.setattr(one_file, "_bits", lambda *arguments: 32)
    page = filed(Catalogue({"long": recording}), limit=LIMIT)
    assert "computes the weights of 1 of 2 heads" in page.report[1]
    assert page.report[0] <= LIMIT * 1e6
    stored = [h for h in (0, 1) if page.page.page.locator(f"#query-0\\.0\\.0-{h}").count()]
    assert len(stored) == 1
    [call], other = recording, 1 - stored[0]
    weights = call.weights().numpy()
    header, numbers = page.ask("tile", call="0.0.0", place=f"{other},0,1,0", reduce="max")
    assert header["word"] == "no query and key in this page"
    is_visible = ~np.isnan(numbers["tile"])
    part = weights[other][256:512, :256]
    assert is_visible.all()
    assert (numbers["tile"] >= part - 1e-7).all()
    page.page.show(call="0.0.0", head=other, cell="500,20", pinned=1)
    message = "This page has no query and key for this head: open the recording with heedful look"
    page.page.region.get_by_text(message).wait_for()
    word = re.compile("^no query and key in this page$")
    page.page.page.get_by_role("status").filter(has_text=word).first.wait_for()
    with pytest.raises(Exception, match="for some of these heads"):
        page.ask("row", call="0.0.0", heads="0,1", at=500)
    page.page.cell("0.0.0", stored[0], 500, 20)
    assert as_shown(page.page.weight, float(weights[stored[0], 500, 20]))


def test_an_unsupported_question_is_an_error(filed, served):
    page = filed(served.texts)
    assert not page.page.page.get_by_text("damaged or incomplete").count()
    with pytest.raises(Exception, match="A page in one file cannot do this"):
        page.ask("record", text="a")


def test_search_folds_the_case(filed):
    recording = long(12)
    names = ["Straße", "ΟΔΟΣ", "οδός", "İstanbul", "ﬁn", "a", "B", "ß", "SS", "ς", "σ", "no"]
    recording.tokens = [names]
    texts = Catalogue({"a": recording})
    page, handlers = filed(texts), Handlers(texts)
    for text in ("ss", "STRASSE", "οδος", "Σ", "FIN", "b", "ẞ"):
        words = {"call": "0.0.0", "axis": "keys", "text": text}
        true = unpacked(handlers.handle("find", words))[1]["places"]
        assert page.ask("find", call="0.0.0", axis="keys", text=text)[1]["places"].tolist() == (
            true.tolist()
        ), text


@pytest.mark.parametrize("place", ["sha256-", 'id="numbers">', 'id="query-', "cut"])
def test_a_damaged_page_reports_the_damage(browser, tmp_path, place):
    path = tmp_path / "page.html"
    one_file.write(path, Catalogue({"long": long(40)}), "a file")
    content = bytearray(path.read_bytes())
    if place == "cut":
        del content[content.rindex(b"<style>") + 500 :]
    else:
        content[content.index(place.encode()) + 40] ^= 1
    path.write_bytes(content)
    page = browser.new_page()
    page.goto(path.as_uri())
    page.get_by_text("damaged or incomplete").first.wait_for()
    page.close()
