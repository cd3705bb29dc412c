"""The page of a walk, in a browser without a network: steps, numbers, keys, hostile words."""

import re

import pytest
import torch
from explained_models import explained, ids_of, in_half_precision
from walk_page import is_rounded, numbers, pane, title

from heedful.explain import VARIANTS, explain
from heedful.models.sampling import Sampling

EVIL = "<img src=x onerror=alert(1)> \u202eabc </script><script>alert(2)</script> ']]>"


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_step_shows_the_librarys_numbers(shown, variants, variant):
    page = shown(variants, f"walk={variant}")
    text, second = "one cup of tea", "du thé"
    page.get_by_role("textbox", name="The sentence").fill(text)
    if variant == "cross":
        page.get_by_role("textbox", name="The second text").fill(second)
    walk = explain(text, variant, memory=second if variant == "cross" else None)
    for step, stage in enumerate_steps(page, walk):
        page.get_by_role("navigation", name="Steps").get_by_role("button").nth(step).click()
        if stage.sentence:
            assert stage.sentence in page.get_by_role("region", name="The step").inner_text()
        if max(stage.shape) > 8:  # so many numbers are only drawn as colours
            continue
        name = stage.name + (" of head 0" if stage.shape[:-2] == (2,) else "")
        expected = stage.of_head(0, walk.heads, range(stage.shape[-2]), range(stage.shape[-1]))
        shown_numbers = numbers(page, name)
        assert len(shown_numbers) == stage.shape[-2]
        for row, true in zip(shown_numbers, expected.tolist(), strict=True):
            for text_, number in zip(row, true, strict=True):
                assert is_rounded(text_, number), (stage.name, text_, number)


def enumerate_steps(page, walk):
    """Yield each stage with the index of its step in the list."""
    names = page.get_by_role("navigation", name="Steps").get_by_role("button").all_inner_texts()
    for stage in walk.stages:
        step = next(n for n, name in enumerate(names) if stage.name in re.split(r"[,\s]+", name))
        yield step, stage


def test_planes_of_a_query_and_of_a_moved_token(shown, variants):
    page = shown(variants, "walk=projected&step=6")
    page.get_by_role("textbox", name="The sentence").fill("Terry eats Mango Yogurt")
    page.get_by_role("button", name="a query among the keys").click()
    page.get_by_role("button", name="Yogurt").click()
    walk = explain("Terry eats Mango Yogurt", "projected")
    shares = walk.stage("weights").numbers()[3].tolist()
    words = [f"{share:.2f} {word}" for share, word in zip(shares, walk.tokens, strict=True)]
    assert page.locator(".plane text").all_text_contents() == [*words, "0", "query"]
    page.wait_for_url(re.compile("cell=3%2C0"))
    page.get_by_role("button", name="a moved token").click()
    assert page.locator(".plane .arrow").count() == 4
    texts = page.locator(".plane text").all_text_contents()
    assert texts[0] == "Yogurt"
    assert sorted(texts[4:]) == sorted(f"+ {word}" for word in words)


def test_the_numbers_that_document_004_prints(shown, variants):
    page = shown(variants, "walk=document+004&step=scores")
    assert numbers(page, "scores")[1] == ["-0.0456", "0.3352", "-0.2611"]
    page.keyboard.press("ArrowRight")
    assert numbers(page, "masked")[1] == ["-0.0456", "0.3352", "-∞"]
    page.keyboard.press("ArrowRight")
    assert numbers(page, "weights") == [
        ["1.0000", "0.0000", "0.0000"],
        ["0.4059", "0.5941", "0.0000"],
        ["0.3368", "0.4165", "0.2468"],
    ]  # fmt: skip


def test_a_number_highlights_its_factors_and_shows_its_calculation(shown, variants):
    page = shown(variants, "step=scores")
    page.get_by_role("cell", name="step, one: 0.2935").hover()
    text = pane(page).inner_text()
    assert "scores: step → one" in text
    assert "0.05 · 0.77 + 0.80 · 0.25 + 0.55 · 0.10 = 0.2935" in text
    lit = page.locator(".lit")
    assert sorted(lit.evaluate_all("all => all.map((part) => part.className)")) == [
        "lit cell", "lit column", "lit row",
    ]  # fmt: skip
    boxes = {
        name: page.locator(f".lit.{name}").bounding_box() for name in ("row", "column", "cell")
    }
    assert boxes["row"]["y"] == pytest.approx(boxes["cell"]["y"], abs=3)
    assert boxes["column"]["x"] == pytest.approx(boxes["cell"]["x"], abs=3)
    page.keyboard.press("ArrowRight")
    assert "weights: step → one" in pane(page).inner_text()
    assert "= 0.0988" in pane(page).inner_text()


def test_numbers_and_steps_by_keyboard_and_browser_history(shown, variants):
    page = shown(variants, "step=scores")
    grid = page.get_by_role("group", name=re.compile("^scores, 6 by 6")).last
    grid.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert "starts → starts" in pane(page).inner_text()
    assert "pinned" in pane(page).inner_text()
    page.wait_for_url(re.compile("cell=2%2C2"))
    page.keyboard.press("Escape")
    assert "pinned" not in pane(page).inner_text()
    page.keyboard.press("End")
    assert title(page) == "context"
    page.wait_for_url(re.compile("step=4"))
    page.keyboard.press("PageUp")
    assert title(page) == "weights"
    page.wait_for_url(re.compile("step=3"))
    page.go_back()
    page.wait_for_url(re.compile("step=4"))
    assert title(page) == "context"


def test_an_address_opens_a_step_a_sentence_and_a_number(shown, variants):
    page = shown(variants, "walk=causal&step=weights&text=tea+or+tea&cell=2,1&theme=dark")
    assert title(page) == "weights"
    assert "weights: tea₂ → or" in pane(page).inner_text()
    weights = explain("tea or tea", "causal").stage("weights").numbers()
    assert is_rounded(numbers(page, "weights")[2][1], float(weights[2, 1]))
    page = shown(variants, "walk=none&step=99&cell=7,x&head=5&text=")
    assert title(page) == "context"  # the last step


def test_words_that_are_markup_are_shown_as_text(shown, variants):
    page = shown(variants)
    page.get_by_role("textbox", name="The sentence").fill(EVIL)
    page.get_by_text("onerror").first.wait_for()
    assert page.locator("main img, main script").count() == 0
    page.get_by_role("textbox", name="The sentence").fill("  ")
    assert numbers(page, "embeddings")[0] == ["0.43", "0.15", "0.89"]
    page.get_by_role("textbox", name="The sentence").fill("so " * 60)
    page.get_by_text("The first 40 words are shown, 20 more are not.").wait_for()


def test_masked_weights_have_another_colour_than_small_weights(shown, variants):
    page = shown(variants, "walk=causal&step=weights")
    table = page.get_by_role("table", name="weights", exact=True)
    masked, small = (
        table.get_by_role("cell", name=name).evaluate("cell => getComputedStyle(cell).background")
        for name in ("Your, step: 0.0000", "step, one: 0.1903")
    )
    score = page.get_by_role("table", name="masked").get_by_role("cell", name="Your, step: −∞")
    assert masked == score.evaluate("cell => getComputedStyle(cell).background") != small


def answers(page):
    """The likeliest tokens with their probabilities."""
    rows = page.get_by_role("table").get_by_role("row").all_inner_texts()
    return [tuple(row.split()) for row in rows if re.search(r"\d$", row.strip())]


def expected_answers(opened, text, **sampling):
    model = in_half_precision(opened)
    logits = model.model(ids_of(model, text)).logits[:, -1]
    shares = Sampling(**sampling).probabilities(logits, torch.zeros(1, 0, dtype=torch.long))[0]
    ids = logits[0].topk(10).indices.tolist()
    return [(opened.pieces([id])[0], f"{shares[id]:.4f}") for id in ids]


def test_a_small_model_computes_typed_texts_up_to_the_next_token(shown, typed):
    address, opened = typed
    page = shown(address, "step=logits")
    text = "import this é"
    page.get_by_role("textbox", name="The sentence").fill(text)
    walk = explained(in_half_precision(opened), text, layer=1)
    count = len(walk.tokens)
    for step in ("logits", "weights"):
        page.get_by_role("navigation", name="Steps").get_by_text(step, exact=True).click()
        page.get_by_role("heading", level=1).filter(has_text=step).wait_for()
        stage = walk.stage(step)
        ids = [likely.id for likely in walk.answers[0].likeliest]
        columns = ids if step == "logits" else range(count)
        name = {"weights": "weights of head 0"}.get(step, step)
        true = stage.of_head(0, walk.heads, range(count), columns)
        for row, expected in zip(numbers(page, name), true.tolist(), strict=True):
            texts = [text for text in row if text != "…"]
            assert all(is_rounded(*pair) for pair in zip(texts, expected, strict=True))
    page.keyboard.press("End")
    assert answers(page) == expected_answers(opened, text, temperature=1.0)


def test_sliders_by_keyboard_and_by_address(shown, typed):
    address, opened = typed
    text = "import this and that"
    page = shown(address, "step=likeliest&text=import+this+and+that&temperature=0.5&top_k=5")
    assert answers(page) == expected_answers(opened, text, temperature=0.5, top_k=5)
    page.get_by_role("slider", name="temperature").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(r"temperature=0\.65"))
    page.get_by_role("slider", name="top-k").press("ArrowLeft")
    page.wait_for_url(re.compile("top_k=4"))
    assert answers(page) == expected_answers(opened, text, temperature=0.65, top_k=4)
    assert page.get_by_role("slider", name="top-k").get_attribute("aria-valuetext") == "4"
    page.get_by_role("slider", name="top-k").press("End")
    page.get_by_role("slider", name="temperature").press("Home")
    page.wait_for_url(lambda url: "top_k" not in url and "temperature=0&" in f"{url}&")
    assert [share for _, share in answers(page)] == ["1.0000"] + ["0.0000"] * 9
    assert title(page).startswith("likeliest tokens after")
