"""The walk as one file, in a browser with no network: steps, numbers, keys, hostile words."""

import json
import re
import runpy
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from browsed import lacking
from walks import walk

from heedful.explain import VARIANTS, explain
from heedful.text.examples import SECOND, SENTENCE
from heedful.views.walk.offline import of_explanation, page

ROOT = Path(__file__).resolve().parents[2]
SITE = runpy.run_path(str(ROOT / "docs" / "walks.py"))  # what makes the pages of the site
LINK = re.compile(r"\]\(\.\./(walk[\w-]*\.html)#([^)]+)\)")
PHONE = {"width": 390, "height": 844}
EVIL = "<img src=x onerror=alert(1)> \u202eabc </script><script>alert(2)</script> ']]>"


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    path = tmp_path_factory.mktemp("walk") / "variants.html"
    path.write_bytes(SITE["variants"]())
    return path.as_uri()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    found = {kind: walk(kind) for kind in ("gpt", "bert", "seq2seq")}
    for kind, one in found.items():
        (folder / f"{kind}.html").write_bytes(page(of_explanation(one)))
    return {kind: ((folder / f"{kind}.html").as_uri(), one) for kind, one in found.items()}


@pytest.fixture
def shown(opened):
    """A page of a walk, offline; where it stands is its address."""

    def call(address, where="", **options):
        page = opened(f"{address}#{where}", **options).page
        page.context.set_offline(True)
        page.get_by_role("heading", level=1).wait_for()
        return page

    return call


def numbers(page, name):
    """The numbers of a matrix, as they stand in its cells."""
    rows = page.get_by_role("table", name=name, exact=True).last.get_by_role("row")
    return [
        [text.replace("−", "-") for text in rows.nth(n).get_by_role("cell").all_inner_texts()]
        for n in range(rows.count())
    ]


def pane(page):
    return page.get_by_role("region", name="This number")


def title(page):
    return page.get_by_role("heading", level=1).locator("bdi").inner_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_step_shows_the_librarys_numbers(shown, variants, variant):
    page = shown(variants, f"walk={variant}")
    for text, second in ((SENTENCE, SECOND), ("one cup of tea", "du thé")):
        page.get_by_role("textbox", name="The sentence").fill(text)
        if variant == "cross":
            page.get_by_role("textbox", name="The second text").fill(second)
        found = explain(text, variant, memory=second if variant == "cross" else None)
        for step, stage in enumerate_steps(page, found):
            page.get_by_role("navigation", name="Steps").get_by_role("button").nth(step).click()
            if stage.sentence:
                assert stage.sentence in page.get_by_role("region", name="The step").inner_text()
            if max(stage.shape) > 8:  # so many numbers stand there as colours alone
                continue
            name = stage.name + (" of head 0" if stage.shape[:-2] == (2,) else "")
            expected = stage.of_head(0, found.heads, range(stage.shape[-2]), range(stage.shape[-1]))
            shown_numbers = numbers(page, name)
            assert len(shown_numbers) == stage.shape[-2]
            for row, true in zip(shown_numbers, expected.tolist(), strict=True):
                for text_, number in zip(row, true, strict=True):
                    assert is_rounded(text_, number), (stage.name, text_, number)


def enumerate_steps(page, found):
    """Each stage with the place of its step in the list."""
    names = page.get_by_role("navigation", name="Steps").get_by_role("button").all_inner_texts()
    for stage in found.stages:
        step = next(n for n, name in enumerate(names) if stage.name in re.split(r"[,\s]+", name))
        yield step, stage


def is_rounded(text, number):
    if text in ("-∞", "−∞"):
        return number == -float("inf")
    decimals = len(text.partition(".")[2])
    return abs(float(text) - number) <= 0.5001 * 10**-decimals


@pytest.mark.parametrize("name", ["walk.html", "walk-model.html"])
def test_each_link_of_a_lesson_opens_its_walk_at_its_step(shown, tmp_path, name):
    """In one page; what a link does not name is as it is when the page is opened."""
    make = SITE[{"walk.html": "variants", "walk-model.html": "model"}[name]]
    make.__globals__["STEPS"] = 1  # the steps are the same before it has learned
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
    """(page, what is written behind it) of each link to a walk."""
    for path in sorted((ROOT / "docs" / "lessons").glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            yield from LINK.findall("".join(cell["source"]))


def test_every_lesson_on_a_step_links_to_it():
    linked = {path.name: LINK.findall(path.read_text("utf-8"))
              for path in (ROOT / "docs" / "lessons").glob("*.ipynb")}  # fmt: skip
    assert [name for name, found in linked.items() if not found] == ["11-bert.ipynb"]


def test_document_002_as_it_prints_them(shown, variants):
    page = shown(variants, "step=scores")
    assert numbers(page, "scores")[1] == [
        "0.9544",
        "1.4950",
        "1.4754",
        "0.8434",
        "0.7070",
        "1.0865",
    ]
    page.keyboard.press("ArrowRight")
    assert title(page) == "weights"
    assert numbers(page, "weights")[0] == [
        "0.2098",
        "0.2006",
        "0.1981",
        "0.1242",
        "0.1220",
        "0.1452",
    ]
    page.keyboard.press("ArrowRight")
    assert numbers(page, "context") == [
        ["0.4421", "0.5931", "0.5790"], ["0.4419", "0.6515", "0.5683"],
        ["0.4431", "0.6496", "0.5671"], ["0.4304", "0.6298", "0.5510"],
        ["0.4671", "0.5910", "0.5266"], ["0.4177", "0.6503", "0.5645"],
    ]  # fmt: skip


def test_document_004_as_it_prints_them(shown, variants):
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


def test_a_number_lights_what_makes_it_and_is_written_out(shown, variants):
    page = shown(variants, "step=scores")
    page.get_by_role("cell", name="step, one: 0.2935").hover()
    text = pane(page).inner_text()
    assert "scores: step → one" in text
    assert "0.05 · 0.77 + 0.80 · 0.25 + 0.55 · 0.10 = 0.2935" in text
    lit = page.locator(".lit")
    assert sorted(lit.evaluate_all("all => all.map((one) => one.className)")) == [
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


def test_everything_by_keyboard_and_back(shown, variants):
    page = shown(variants, "step=scores")
    grid = page.get_by_role("group", name=re.compile("^scores, 6 by 6")).last
    grid.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert "starts → starts" in pane(page).inner_text()
    assert "kept" in pane(page).inner_text()
    page.wait_for_url(re.compile("cell=2%2C2"))
    page.keyboard.press("Escape")
    assert "kept" not in pane(page).inner_text()
    page.keyboard.press("End")
    assert title(page) == "context"
    page.wait_for_url(re.compile("step=4"))
    page.keyboard.press("PageUp")
    assert title(page) == "weights"
    page.wait_for_url(re.compile("step=3"))
    page.go_back()
    page.wait_for_url(re.compile("step=4"))
    assert title(page) == "context"


def test_an_address_opens_its_step_its_sentence_and_its_number(shown, variants):
    page = shown(variants, "walk=causal&step=weights&text=tea+or+tea&cell=2,1&theme=dark")
    assert title(page) == "weights"
    assert "weights: tea → or" in pane(page).inner_text()
    found = explain("tea or tea", "causal").stage("weights").numbers()
    assert is_rounded(numbers(page, "weights")[2][1], float(found[2, 1]))
    page = shown(variants, "walk=none&step=99&cell=7,x&head=5&text=")
    assert title(page) == "context"  # the last one there is


def test_words_that_are_markup_are_text(shown, variants):
    page = shown(variants)
    page.get_by_role("textbox", name="The sentence").fill(EVIL)
    page.get_by_text("onerror").first.wait_for()
    assert page.locator("main img, main script").count() == 0
    page.get_by_role("textbox", name="The sentence").fill("  ")
    assert numbers(page, "embeddings")[0] == ["0.43", "0.15", "0.89"]
    page.get_by_role("textbox", name="The sentence").fill("so " * 60)
    page.get_by_text("The first 40 words are shown, 20 more are not.").wait_for()


@pytest.mark.parametrize("kind", ["gpt", "bert", "seq2seq"])
def test_a_model_to_its_next_word(shown, models, kind):
    address, found = models[kind]
    page = shown(address, "step=weights")
    weights = found.stage("weights")
    tokens = found.memory if weights.rows == "memory" else found.tokens
    page.get_by_role("button", name="head 3").click()
    expected = weights.of_head(3, found.heads, range(len(tokens)), range(len(tokens)))
    shown_numbers = numbers(page, "weights of head 3")
    for row, true in zip(shown_numbers, expected.tolist(), strict=True):
        assert all(is_rounded(*pair) for pair in zip(row, true, strict=True))
    page.keyboard.press("End")
    likely = found.answers[-1].likeliest
    rows = page.get_by_role("table").get_by_role("row").all_inner_texts()[-len(likely) :]
    assert rows[0].split() == [likely[0].token, f"{likely[0].probability:.4f}"]
    count = page.get_by_role("navigation", name="Steps").get_by_role("button").count()
    for step in range(0, count, 1 if kind == "gpt" else 7):
        page.get_by_role("navigation", name="Steps").get_by_role("button").nth(step).click()
        assert page.locator(".matrix, table").count() > 0


@pytest.mark.parametrize(("scheme", "size"), [("light", None), ("dark", None), ("light", PHONE)])
def test_axe_finds_nothing_serious(shown, variants, models, scheme, size):
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        lacking("no axe is installed: pip install axe-playwright-python")
    options = {"color_scheme": scheme, **({"viewport": size} if size else {})}
    for address, where in ((variants, "walk=multihead&step=3"), (models["gpt"][0], "step=5")):
        page = shown(address, where, **options)
        page.locator(".dim").evaluate_all("all => all.forEach((one) => one.remove())")
        found = Axe().run(page).response["violations"]
        serious = [
            (one["id"], [node["html"][:140] for node in one["nodes"][:3]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert not serious


def test_nothing_is_wider_than_a_phone_and_every_result_has_its_numbers(shown, variants):
    page = shown(variants, "walk=causal&step=scores", viewport=PHONE)
    count = page.get_by_role("navigation", name="Steps").get_by_role("button").count()
    for _ in range(count - 1):
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert page.locator("main").evaluate("one => one.scrollWidth <= one.clientWidth")
        results = page.locator("figure.made")
        assert results.get_by_role("table").count() == results.count() > 0
        assert pane(page).is_visible()
        page.keyboard.press("ArrowRight")


def test_what_a_mask_hid_is_told_apart_from_a_small_weight(shown, variants):
    page = shown(variants, "walk=causal&step=weights")
    table = page.get_by_role("table", name="weights", exact=True)
    hidden, own = (
        table.get_by_role("cell", name=name).evaluate("one => getComputedStyle(one).background")
        for name in ("Your, step: 0.0000", "step, one: 0.1903")
    )
    before = page.get_by_role("table", name="masked").get_by_role("cell", name="Your, step: −∞")
    assert hidden == before.evaluate("one => getComputedStyle(one).background") != own


def test_nothing_moves_where_motion_is_not_wanted(shown, variants):
    page = shown(variants, "step=scores")
    assert (
        page.locator(".numbers").first.evaluate("one => getComputedStyle(one).animationName")
        == "none"
    )
