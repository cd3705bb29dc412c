"""The page of a walk: links in the lessons, trained models, a phone, accessibility."""

import json
import re
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from browser_fixtures import SITE
from page_reader import faults
from walk_page import is_rounded, numbers, pane

ROOT = Path(__file__).resolve().parents[3]
LINK = re.compile(r"\]\(\.\./(walk[\w-]*\.html)#([^)]+)\)")
PHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize("name", ["walk.html", "walk-model.html"])
def test_each_link_of_a_lesson_opens_its_walk_at_its_step(shown, tmp_path, name):
    """All links are opened in one page; a link resets everything that it does not name."""
    make = SITE[{"walk.html": "variants", "walk-model.html": "model"}[name]]
    make.__globals__["STEPS"] = 1  # an untrained model has the same steps
    (tmp_path / name).write_bytes(make())
    page = shown((tmp_path / name).as_uri())
    links = [where for file, where in lesson_links() if file == name]
    assert len(links) > 8
    for where in links:
        page.evaluate("where => { location.hash = where }", where)
        words = {key: value for key, [value] in parse_qs(where).items()}
        heading = page.get_by_role("heading", level=1).filter(has_text=words["step"])
        heading.wait_for()
        now = page.locator('[aria-current="step"]').inner_text()
        assert words["step"] in re.split(r"[,\n] ?", now) or words["step"] == "likeliest", where
        if "walk" in words:
            chosen = page.get_by_role("button", name=words["walk"], exact=True)
            assert chosen.get_attribute("aria-pressed") == "true"
        for box, key in (("The sentence", "text"), ("The second text", "memory")):
            if key in words:
                assert page.get_by_role("textbox", name=box).input_value() == words[key]


def lesson_links():
    """Yield the page and the fragment of each link to a walk."""
    for path in sorted((ROOT / "docs" / "lessons").glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            yield from LINK.findall("".join(cell["source"]))


@pytest.mark.parametrize("kind", ["gpt", "bert", "seq2seq"])
def test_the_weights_and_the_likeliest_tokens_of_a_model(shown, models, kind):
    address, walk = models[kind]
    page = shown(address, "step=weights")
    weights = walk.stage("weights")
    tokens = walk.memory if weights.rows == "memory" else walk.tokens
    page.get_by_role("button", name="head 3").click()
    expected = weights.of_head(3, walk.heads, range(len(tokens)), range(len(tokens)))
    shown_numbers = numbers(page, "weights of head 3")
    for row, true in zip(shown_numbers, expected.tolist(), strict=True):
        assert all(is_rounded(*pair) for pair in zip(row, true, strict=True))
    page.keyboard.press("End")
    likely = walk.answers[-1].likeliest
    rows = page.get_by_role("table").get_by_role("row").all_inner_texts()[-len(likely) :]
    assert rows[0].split() == [likely[0].token, f"{likely[0].probability:.4f}"]
    count = page.get_by_role("navigation", name="Steps").get_by_role("button").count()
    for step in range(0, count, 1 if kind == "gpt" else 7):
        page.get_by_role("navigation", name="Steps").get_by_role("button").nth(step).click()
        assert page.locator(".matrix, table, .plane").count() > 0


@pytest.mark.parametrize(("scheme", "size"), [("light", None), ("dark", None), ("light", PHONE)])
def test_axe_finds_nothing_serious(shown, variants, models, typed, scheme, size):
    options = {"color_scheme": scheme, **({"viewport": size} if size else {})}
    for address, where in (
        (variants, "walk=multihead&step=3"),
        (models["gpt"][0], "step=5"),
        (variants, "walk=projected&step=7"),
        (typed[0], "step=likeliest&top_k=3"),
    ):
        page = shown(address, where, **options)
        page.locator(".dim").evaluate_all("all => all.forEach((part) => part.remove())")
        assert not faults(page)


def test_on_a_phone_nothing_is_too_wide_and_every_result_shows_numbers(shown, variants):
    page = shown(variants, "walk=causal&step=scores", viewport=PHONE)
    count = page.get_by_role("navigation", name="Steps").get_by_role("button").count()
    for _ in range(count - 1):
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert page.locator("main").evaluate("main => main.scrollWidth <= main.clientWidth")
        if page.locator(".plane").count() == 0:
            results = page.locator("figure.result")
            assert results.get_by_role("table").count() == results.count() > 0
            assert pane(page).is_visible()
        page.keyboard.press("ArrowRight")
