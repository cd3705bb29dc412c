"""The page without heads and cells: its numbers equal those of models reduced by hand."""

import re

import pytest
from page_reader import Served, as_shown
from reduced_models import predicted, reduced, row_without
from small_models import opened as small_model

from heedful.loaded import LoadedBert, LoadedGPT
from heedful.views.explorer import without

TEXT = "abac dea gab"
OUTPUT = "blocks.{}.attend.output"
ENDED = ["ERR_CONNECTION"]  # of a server that ends before the page


def check(page, model, smaller, ids, at):
    """Compare the page with the predictions of a model and of the reduced model after `at`."""
    (losses, chances), (others, other_chances) = (predicted(m, ids) for m in (model, smaller))
    changes = others - losses

    def agree():
        part = page.page.get_by_role("region", name="Without")
        total = part.locator(".total").inner_text()
        assert as_shown(total.split()[0].lstrip("+"), float(changes.mean()))
        assert ("worse" in total) == (float(changes.mean()) > 0)
        tokens = page.page.get_by_role("listbox", name="tokens of the text").get_by_role("option")
        titles = [token.get_attribute("title") for token in tokens.all()]
        shown = [re.search(r"change in loss (\S+)", title) for title in titles]
        assert shown[0] is None
        for match, change in zip(shown[1:], changes, strict=True):
            assert as_shown(match[1].lstrip("+"), float(change))
        rows = part.get_by_role("row").all_inner_texts()[1:]
        assert len(rows) == 8  # all letters
        both = zip(chances[at], other_chances[at], strict=True)
        ordered = sorted(both, key=max, reverse=True)
        for row, pair in zip(rows, ordered, strict=True):
            for text, chance in zip(re.findall(r"([<\d. ]+)\u00a0%", row), pair, strict=True):
                assert "<" in text or as_shown(text, 100 * float(chance))
        assert "Change proved" in part.inner_text()

    page.soon(agree)


def test_heads_and_a_cell_are_taken_away_and_put_back(opened, monkeypatch):
    loaded = small_model(LoadedGPT)
    recording, model = loaded.record(TEXT, values=True), loaded.model
    ids = recording[0].ids
    with Served({"text": recording}, {"gpt": loaded}) as server:
        page = opened(server.address, server.origin, allowed=[*ENDED, "400"])
        page.cell("0.0.0", 2, 7, 3)
        page.page.keyboard.press("e")
        edge = reduced(model, OUTPUT.format(0), [2], 7, row_without(recording[0], 2, 7, 3))
        check(page, model, edge, ids, 7)
        page.page.keyboard.press("z")
        check(page, model, reduced(model, OUTPUT.format(0), [2]), ids, 7)
        page.page.keyboard.press("e")
        page.page.wait_for_url("**&without=0.2")
        page.page.get_by_role("combobox", name="Layer").first.select_option("1")
        page.page.get_by_role("button", name="this head", exact=True).first.click()
        page.page.wait_for_url("**&without=0.2%2C1.2")
        heads = reduced(reduced(model, OUTPUT.format(0), [2]), OUTPUT.format(1), [2])
        check(page, model, heads, ids, 7)
        page.page.reload()
        check(page, model, heads, ids, 7)
        page.page.go_back()
        check(page, model, reduced(model, OUTPUT.format(0), [2]), ids, 7)
        monkeypatch.setattr(without, "LONGEST", 5)
        page.page.get_by_role("option", name=re.compile(", 4")).click()
        page.page.get_by_role("alert").get_by_text("a text of 12 tokens; expected").wait_for()
        page.page.get_by_role("button", name="put back", exact=True).last.click()
        page.page.get_by_role("list", name="Taken away").wait_for(state="detached")


@pytest.mark.parametrize("kind", [LoadedBert, None])
def test_models_that_predict_nothing_and_recordings(kind, opened, recordings):
    loaded = kind and small_model(kind)
    shown = loaded.record("the cat sat") if loaded else recordings["causal"]
    with Served({"text": shown}, loaded and {"bert": loaded}) as server:
        page = opened(server.address, server.origin, allowed=ENDED)
        page.cell("0.0.0", 0, 1, 1, without="0.0,0.1.1.0")
        region = page.page.get_by_role("region", name="Without")
        assert region.count() == (1 if loaded else 0)
        assert not loaded or "predicts no next token" in region.inner_text()
        assert not page.page.get_by_role("button", name="change in loss").count()


def test_what_ablate_measured_is_a_colour_and_an_axis(opened, recordings):
    with Served({"causal": recordings["causal"]}) as server:
        first, second = (call.name for call in recordings["causal"])
        rows = [(f"outer.{first}", 1, 0.0321), (second, 2, -0.5), (second, 0, None)]
        heads = [
            {"module": module, "head": head, "delta": delta, "error": 0.25, "first_order": 0.126}
            for module, head, delta in rows
        ]
        about = {"model": "m", "metric": "loss", "kind": "zero", "texts": 3, "heads": heads}
        server.texts.ablation = about
        page = opened(f"{server.address}#call=0.0.0&head=1", server.origin, allowed=ENDED)
        pane = page.page.get_by_role("region", name="Heads")
        pane.get_by_text("3 heads have no Δ score").wait_for()
        assert pane.locator(".scale").inner_text().split() == ["−0.5", "+0.5"]
        assert pane.get_by_role("listbox", name="Heads as points, Δ against previous").count()
        cases = {"0.1": "+0.032", "1.2": "−0.5", "1.0": "≈ +0.13", "1.1": "–"}
        for head, text in cases.items():
            page.show(call=f"0.0.{head[0]}", head=head[2])
            pane.locator(".head-summary dd").first.get_by_text(text, exact=True).wait_for()
        grid = pane.get_by_role("listbox", name="Heads, a small picture each")
        assert "Δ –" in grid.inner_text()
        pane.get_by_role("checkbox", name="sort").check()
        for key in ("Home", "Enter"):
            grid.press(key)
        page.page.wait_for_url("**call=0.0.1&head=0**")  # the largest
