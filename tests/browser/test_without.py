"""The page without heads and cells: its numbers equal those of models reduced by hand."""

import copy
import re

import torch
from page_reader import Served, as_shown
from small_models import opened as small_model

from heedful.loaded import LoadedBert, LoadedGPT
from heedful.views.explorer import without

WIDTH = 4  # of a head
ENDED = ["ERR_CONNECTION"]  # of a server that ends before the page


def predicted(model, ids):
    """Return the loss of each token after the first, and the next tokens' probabilities (N, V)."""
    with torch.no_grad():
        chances = model(ids[None]).logits[0].double().softmax(-1)
    return -chances[:-1].gather(1, ids[1:, None])[:, 0].log(), chances


def reduced(model, layer, head, row=slice(None), new=0.0):
    """Return a copy of a model whose output projection reads `new` from a head, in some rows."""

    def changed(module, inputs):
        inputs[0][0, row, head * WIDTH : (head + 1) * WIDTH] = new

    model = copy.deepcopy(model)
    model.blocks[layer].attend.output.register_forward_pre_hook(changed)
    return model


def check(page, model, smaller, ids, at):
    """Compare the page with the predictions of a model and of the reduced model after `at`."""
    (losses, chances), (others, other_chances) = (predicted(m, ids) for m in (model, smaller))
    changes, both = others - losses, zip(chances[at], other_chances[at], strict=True)
    ordered = sorted(both, key=max, reverse=True)

    def agree():
        part = page.page.get_by_role("region", name="Without")
        total = part.locator(".total").inner_text()
        assert as_shown(total.split()[0].lstrip("+"), float(changes.mean()))
        assert ("worse" in total) == (float(changes.mean()) > 0)
        text = page.page.get_by_role("listbox", name="tokens of the text")
        titles = [token.get_attribute("title") for token in text.get_by_role("option").all()]
        shown = [re.search(r"change in loss (\S+)", title) for title in titles]
        assert shown[0] is None
        for match, change in zip(shown[1:], changes, strict=True):
            assert as_shown(match[1].lstrip("+"), float(change))
        rows = part.get_by_role("row").all_inner_texts()[1:]
        for row, pair in zip(rows, ordered, strict=True):  # the vocabulary has eight tokens
            assert ("◂" in row) == bool(pair[0] == chances[at, ids[at + 1]])
            for text, chance in zip(re.findall(r"([<\d. ]+)\u00a0%", row), pair, strict=True):
                assert "<" in text or as_shown(text, 100 * float(chance))
        assert "Change proved" in part.inner_text()

    page.soon(agree)


def test_heads_and_a_cell_are_taken_away_and_put_back(opened, monkeypatch):
    bert, gpt = small_model(LoadedBert), small_model(LoadedGPT)
    recording, model = gpt.record("abac dea gab", values=True), gpt.model
    [call, _], ids = recording, recording[0].ids
    recordings = {"bert": bert.record("the cat sat"), "gpt": recording}
    with Served(recordings, {"bert": bert, "gpt": gpt}) as server:
        page = opened(server.address, server.origin, allowed=[*ENDED, "400"])
        page.cell("0.0.0", 2, 1, 1, without="0.0,0.1.1.0")
        page.page.get_by_text("this model predicts no next token").wait_for()
        assert not page.page.get_by_role("button", name="change in loss").count()
        page.cell("1.0.0", 2, 7, 3)
        page.page.keyboard.press("e")
        row = call.weights(2)[7].clone()
        row[3] = 0
        row = row / row.sum() @ call.value[2]
        check(page, model, reduced(model, 0, 2, 7, row), ids, 7)
        page.page.keyboard.press("z")
        first = reduced(model, 0, 2)
        check(page, model, first, ids, 7)
        page.page.keyboard.press("e")
        page.page.wait_for_url("**&without=0.2")
        page.page.get_by_role("combobox", name="Layer").first.select_option("1")
        page.page.get_by_role("button", name="this head", exact=True).first.click()
        page.page.wait_for_url("**&without=0.2%2C1.2")
        check(page, model, reduced(first, 1, 2), ids, 7)
        page.page.reload()
        check(page, model, reduced(first, 1, 2), ids, 7)
        page.page.go_back()
        check(page, model, first, ids, 7)
        monkeypatch.setattr(without, "LONGEST", 5)
        page.page.get_by_role("option", name=re.compile(", 4")).click()
        page.page.get_by_role("alert").get_by_text("a text of 12 tokens; expected").wait_for()
        page.page.get_by_role("button", name="put back", exact=True).last.click()
        page.page.get_by_role("list", name="Taken away").wait_for(state="detached")


def test_a_recording_without_its_model(explorer):
    explorer.cell("0.0.0", 0, 1, 1, without="0.0")
    assert not explorer.page.get_by_role("region", name="Without").count()


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
