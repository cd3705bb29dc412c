"""The page's comparisons equal the library's: all heads, difference, value norms, rollout."""

import re

import pytest
from page_reader import KINDS, as_shown

from heedful.ops.rollout import rollout

HOSTS = pytest.mark.parametrize("host", ["explorer", "file"])


def readout(page, name):
    """The weight at the selected cell, beside the map with this name."""
    return page.page.get_by_role("figure", name=name, exact=True).locator(".readout b").inner_text()


def agrees(page, read, true):
    """Wait until a number of the page equals a true number."""

    def check():
        shown = read()
        assert shown != "…"
        assert as_shown(shown, true)

    page.soon(check)


def calls_of(served, where):
    """Every call on the text of a call, by its id."""
    recording, text, _ = map(int, where.split("."))
    calls = served.texts.about()[recording]["texts"][text]["calls"]
    return [served.texts.call(recording, text, n) for n in range(len(calls))]


@HOSTS
@pytest.mark.parametrize("kind", ["causal", "grouped", "cross"])
def test_a_cell_in_all_heads(host, kind, request, places, served):
    page = request.getfixturevalue(host)
    where, call = places(*KINDS[kind])
    page.cell(where, call.heads[-1], 3, 2)
    calls = [each for each in calls_of(served, where) if each.shape[1:] == call.shape[1:]]
    weights = [float(each.weights(h)[3, 2]) for each in calls for h in each.heads]
    true = sorted(weights, reverse=True)

    def check():
        shown = page.region.locator(".all-heads li b").all_inner_texts()
        assert len(shown) == min(5, len(true))
        assert all(as_shown(text, weight) for text, weight in zip(shown, true, strict=False))

    page.soon(check)
    page.region.locator(".all-heads li button").first.click()
    agrees(page, lambda: page.weight, true[0])


@HOSTS
def test_the_difference_of_two_heads(host, request, places):
    page = request.getfixturevalue(host)
    where, call = places("causal")
    other = places("causal", layer=1)[1]
    page.cell(where, 0, 9, 4, beside=f"{where[:-1]}1.2", difference=1)
    true = float(other.weights(2)[9, 4] - call.weights(0)[9, 4])
    agrees(page, lambda: readout(page, "The difference"), true)
    page.page.get_by_role("button", name="Close the difference").click()
    page.page.get_by_role("button", name="Close the second map").click()


def test_maps_of_unequal_sizes_have_no_difference(explorer, places):
    where, _ = places("causal")
    explorer.cell(where, 0, 9, 4, beside=f"{places('long')[0]}.0", difference=1)
    assert explorer.page.get_by_role("button", name="Difference", exact=True).is_disabled()
    assert not explorer.page.get_by_role("figure", name="The difference").count()


def test_beside_opens_the_head_seen_before(explorer, places):
    where, _ = places("causal")
    explorer.show(call=where, head=0)
    explorer.page.get_by_role("combobox", name="Head").first.select_option("2")
    explorer.page.get_by_role("button", name="Beside").click()
    second = explorer.page.get_by_role("figure", name="The second map")
    assert second.get_by_role("combobox", name="Head").input_value() == "0"
    explorer.page.get_by_role("button", name="Close the second map").click()


@HOSTS
def test_weights_times_value_norms(host, request, places):
    page = request.getfixturevalue(host)
    where, call = places(*KINDS["values"])
    page.cell(where, 2, 8, 3, values=1)
    true = float(call.value_norm(2)[8, 3])
    agrees(page, lambda: readout(page, "The map"), true)
    page.show(call=where, head=2)


def test_rollout(explorer, places, served):
    where, _ = places("causal", layer=1)
    explorer.cell(where, 0, 7, 3)
    calls = calls_of(served, where)[:2]
    true = rollout(([each.weights(h) for h in each.heads] for each in reversed(calls)), 7)
    text = explorer.page.get_by_role("region", name="The text")
    text.get_by_role("button", name="rollout").click()

    def check():
        shown = text.locator(".legend .jump b").all_inner_texts()
        best = true.sort(descending=True).values[: len(shown)]
        assert shown
        assert all(as_shown(word, float(share)) for word, share in zip(shown, best, strict=True))

    explorer.soon(check)
    text.get_by_role("button", name="this head").click()


def test_stars_stand_in_the_address_and_in_python(explorer, places):
    where, call = places("causal", layer=1)
    explorer.show(call=where, head=2)
    explorer.page.get_by_role("button", name="Star this head").click()
    heads = explorer.page.get_by_role("region", name="Heads")
    code = heads.locator("code").inner_text()
    pairs = re.findall(r"\((\d+), (\d+)\)", code)
    assert code.startswith("recording.heads(only=[")
    assert [(int(a), int(b)) for a, b in pairs] == [(call.layer, 2)]
    explorer.page.wait_for_url("**stars=1.2**")
    explorer.page.get_by_role("button", name="Star this head").click()
    assert not heads.locator("code").count()


def test_a_pronoun_takes_one_click_and_a_difference_of_texts_two(opened, served, places):
    page = opened(served.address, served.origin)
    where, call = places("causal")
    page.show(call=where, head=0, cell="9,4", pinned=1)
    page.page.evaluate("clicks = 0; addEventListener('click', () => clicks++, true)")
    page.page.get_by_role("option", name=re.compile(r", 7\b")).first.click()
    page.region.locator(".all-heads li").first.wait_for()
    assert page.page.evaluate("clicks") == 1
    other, second = places("windowed")
    text = page.page.get_by_role("combobox", name="Text").first
    text.select_option(".".join(other.split(".")[:2]))  # two further clicks for a person
    page.page.get_by_role("button", name="Beside").click()
    page.page.get_by_role("button", name="Difference").click()
    page.page.get_by_role("figure", name="The difference").wait_for()
    assert page.page.evaluate("clicks") == 3
    page.cell(other, 0, 9, 4, beside=f"{where}.0", difference=1)
    true = float(call.weights(0)[9, 4] - second.weights(0)[9, 4])
    agrees(page, lambda: readout(page, "The difference"), true)
