"""The panes around the map (heads, text, the calculation of a weight) and the first visit."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from page_reader import KINDS, Served, as_shown, number, unit

import heedful
from heedful.head_kinds import SCORES


def heads(page):
    return page.page.get_by_role("region", name="Heads")


def text(page):
    return page.page.get_by_role("region", name="The text")


def numbers(line):
    """The numbers of a line, as text."""
    return re.findall(r"−?\d+(?:\.\d+)?(?:e−?\d+)?", line)


@pytest.mark.parametrize("kind", ["causal", "grouped", "cross", "capped", "sinks", "biased"])
def test_each_step_of_the_calculation_follows_from_those_above(kind, explorer, places):
    where, call = places(*KINDS[kind])
    head = call.heads[-1]
    query, key = divmod(int(call.weights(head).argmax()), call.shape[2])
    explorer.cell(where, head, query, key)
    total = 0.0
    for row in explorer.table("query × key"):
        if row[0].isdigit():
            product = number(row[1]) * number(row[2])
            assert abs(product - number(row[3])) <= 1.5 * unit(row[3]), row
        total += number(row[3] if row[0].isdigit() else row[1])
    steps = explorer.steps()
    assert abs(total - number(steps[0][1])) <= 5 * unit(steps[0][1])
    now = number(steps[0][1])
    for words, shown in steps[1:]:
        inputs = [number(part) for part in numbers(words)]
        if "log-sum-exp" in words:
            continue
        if words.startswith("×"):
            now *= inputs[0]
        elif "tanh" in words:
            now = inputs[0] * math.tanh(now / inputs[1])
        elif "bias" in words:
            now += inputs[0] * (-1 if words.startswith("−") else 1)
        else:
            now = np.exp(inputs[0] - inputs[1])
            assert number(shown) == pytest.approx(now, rel=3e-4)
            continue
        assert abs(now - number(shown)) <= 2.5 * unit(shown), (words, shown)
        now = number(shown)
    lowered = number(next(shown for words, shown in steps if "log-sum-exp" in words))
    for _, weight, _, score in explorer.table("largest weights"):
        assert np.exp(number(score) - lowered) == pytest.approx(number(weight), rel=3e-4, abs=2e-7)


def test_the_explanation_of_a_largest_weight_is_correct(explorer, places):
    where, call = places("causal", layer=1)
    weights = call.weights(0)
    query = int(weights[5:].max(1).values.argmax()) + 5
    order = weights[query].argsort(descending=True)
    explorer.cell(where, 0, query, int(order[0]))
    text = explorer.region.locator(".why").inner_text()
    weight = call.one_weight(0, query, int(order[0]))
    gap = float(weight.scores[order[0]] - weight.scores[order[1]])
    assert f"({int(order[1])}), scores {gap:.2f} lower" in text
    dimension = int((weight.products * np.sign(weight.product)).argmax())
    assert f"Dimension {dimension} alone" in text


@pytest.mark.parametrize(
    "kind", [("causal", "", 1), ("padded", "text 2", 1), ("generated", "all passes", 0),
             ("generated", "pass by pass", 5), ("cross", "", 2)],
    ids=lambda kind: " ".join(kind[:2])
)  # fmt: skip
def test_the_python_expression_gives_the_weight(kind, explorer, places, recordings):
    where, call = places(*kind)
    explorer.cell(where, call.heads[-1], call.shape[1] - 1, 1)
    line = explorer.region.locator("code").inner_text()
    value = eval(line, {"recording": recordings[kind[0]]})
    assert as_shown(explorer.weight, float(value))


def test_heads_by_kind_by_score_and_by_keyboard(explorer, recordings, places):
    where, _ = places("causal")
    explorer.show(call=where, head=0)
    pane, known = heads(explorer), recordings["causal"].heads()
    for kind in {head.kind for head in known}:
        count = sum(head.kind == kind for head in known)
        pane.get_by_role("button", name=f"{'no kind' if kind == '-' else kind} {count}").wait_for()
    pane.get_by_label("Score", exact=True).select_option("sink")
    pane.get_by_label("sort").check()
    best = max(known, key=lambda head: head.sink)
    grid = pane.get_by_role("listbox", name="small picture")
    grid.focus()
    grid.press("Home")
    label = grid.get_by_role("option").text_content()
    assert label.startswith(f"layer {best.layer}, head {best.head}")
    assert label.endswith(f"sink {best.sink:.2f}")
    grid.press("Enter")
    pane.get_by_role("heading", name=f"layer {best.layer}, head {best.head}").wait_for()
    pane.get_by_label("Minimum of sink").fill(f"{best.sink - 0.01:.3f}")
    left = sum(head.sink >= best.sink - 0.025 for head in known)
    pane.get_by_text(f"{left} of {len(known)} heads").wait_for()
    pane.get_by_label("Minimum of sink").fill("0")  # the next test uses the same page
    pane.get_by_label("sort").uncheck()


def test_the_scatter_reaches_every_head_by_keyboard(explorer, recordings, places):
    where, _ = places("causal")
    explorer.show(call=where, head=0)
    known = sorted(recordings["causal"].heads(), key=lambda head: head.previous)
    points = heads(explorer).get_by_role("listbox", name="as points")
    heads(explorer).get_by_role("list", name="Kinds").get_by_role("button").first.wait_for()
    heads(explorer).get_by_text("are being computed").wait_for(state="detached")
    points.focus()
    for _ in known:
        points.press("ArrowLeft")
    labels = []
    for _ in known:
        labels.append(points.get_by_role("option").text_content())
        points.press("ArrowRight")
    assert len(set(labels)) == len(known)
    pairs = zip(known, labels, strict=True)
    assert [f"previous {head.previous:.2f}" in label for head, label in pairs]


def listed(page, label):
    """The tokens and weights in the legend."""
    line = text(page).locator(".legend p").filter(has_text=label)
    line.get_by_role("button").first.wait_for()
    return [
        (int(button.locator("small").inner_text()), number(button.locator("b").inner_text()))
        for button in line.get_by_role("button").all()
    ]


def test_the_legend_lists_the_row_and_the_column_of_a_token(explorer, places):
    where, call = places("causal", layer=1)
    explorer.cell(where, 2, 4, 1)
    run = text(explorer).get_by_role("listbox")
    assert run.inner_text().replace("\n", "") == "a head looks back"
    run.locator("[data-at='9']").hover()
    text(explorer).get_by_text("9 attends to").wait_for()
    for weights, which in (
        (call.weights(2), "this head"),
        (call.weights().mean(0), "layer’s mean"),
    ):
        text(explorer).get_by_role("button", name=which).click()
        run.locator("[data-at='9']").hover()
        text(explorer).get_by_text("9 attends to").wait_for()
        explorer.page.wait_for_timeout(200)
        for label, line in (("attends to", weights[9]), ("is attended to by", weights[:, 9])):
            entries = listed(explorer, f"9 {label}" if label == "attends to" else label)
            best = line.topk(len(entries))
            assert [at for at, _ in entries] == best.indices.tolist()
            np.testing.assert_allclose([w for _, w in entries], best.values, atol=5.1e-5)


def test_queries_and_keys_of_two_texts_are_separate(explorer, places):
    where, call = places("cross", layer=2)
    explorer.cell(where, 1, 2, 7)
    lists = text(explorer).get_by_role("listbox")
    assert [part.get_attribute("aria-label") for part in lists.all()] == ["queries", "keys"]
    assert "".join(call.query_tokens).replace("·", " ") == lists.first.inner_text()
    lists.first.focus()
    lists.first.press("End")
    lists.first.press("Enter")
    assert f"cell={call.shape[1] - 1}" in explorer.page.evaluate(
        "() => new Promise(done => setTimeout(() => done(decodeURIComponent(location.hash)), 400))"
    )


def test_a_window_of_a_long_text_is_rendered_around_the_chosen_token(explorer, places):
    where, call = places("long")
    explorer.cell(where, 0, call.shape[1] - 3, 5)
    run = text(explorer).get_by_role("listbox")
    chosen = run.locator(".mine")
    chosen.wait_for()
    assert run.locator("[data-at]").count() < call.shape[1]
    assert chosen.get_attribute("data-at") == str(call.shape[1] - 3)
    text(explorer).get_by_role("button", name="earlier").click()
    text(explorer).get_by_role("button", name="back to the selected").click()
    chosen.wait_for()


def test_a_first_view_opens_an_example(opened, served):
    page = opened(served.address, served.origin)
    page.region.locator("[data-weight]").wait_for()
    assert number(page.weight) > 0.3
    page.page.go_back()  # the example is no step of the history
    assert not page.page.url.startswith(served.origin)


def test_a_tooltip_opens_by_pointer_and_by_keyboard(explorer, places):
    where, _ = places("causal")
    explorer.show(call=where, head=0)
    word = heads(explorer).locator("dt").get_by_role("button", name="induction")
    word.hover()
    tip = explorer.page.get_by_role("tooltip")
    definition = SCORES["induction"].definition
    tip.get_by_text(definition[1:]).wait_for()
    explorer.page.mouse.move(2, 2)
    tip.wait_for(state="detached")
    word.focus()
    explorer.page.keyboard.press("Shift+Tab")
    explorer.page.keyboard.press("Tab")
    # the previous tooltip may still be open
    word.and_(explorer.page.locator("[aria-describedby]")).wait_for()
    own = explorer.page.locator(f"#{word.get_attribute('aria-describedby')}")
    own.and_(tip).wait_for()
    explorer.page.keyboard.press("Escape")
    tip.wait_for(state="detached")


class Typed:
    """A stand-in for a loaded model that reads letters."""

    reads_pairs = True
    directory = Path("runs/letters")

    def record(self, text, second=None, *, values):
        from small_recordings import of_gpt

        if "!" in text:
            raise heedful.errors.TextError("a text with <b>!</b>", remedy="leave it out")
        return of_gpt(text=text + (second or ""))


def test_a_typed_text_is_recorded_and_opened(opened, recordings):
    with Served({"causal": recordings["causal"]}, {"small": Typed()}) as served:
        page = opened(served.address, served.origin, allowed=("400",))
        page.show(call="0.0.1", head=2)
        page.page.get_by_role("button", name="New text").click()
        box = page.page.get_by_role("dialog", name="A new text")
        box.get_by_label("text", exact=True).fill("no!")
        box.get_by_role("button", name="record").click()
        box.get_by_text("<b>!</b>").wait_for()
        box.get_by_label("text", exact=True).fill("new ")
        box.get_by_label("second text").fill("words")
        box.get_by_role("button", name="record").click()
        box.wait_for(state="hidden")
        run = text(page).get_by_role("listbox").filter(has_text="new words")
        run.wait_for()
        heads(page).get_by_role("heading", name="layer 1, head 2").wait_for()
        assert served.texts.call(1, 0, 1).shape == (3, 9, 9)
        page.page.close()  # before its server
