"""The page's numbers equal the library's to the displayed digits, for every kind of call."""

import csv
import io
import re

import numpy as np
import pytest
import torch
from page_reader import KINDS, as_shown, number, pairs

IN_A_FILE = ("causal", "windowed", "grouped", "padded", "cross", "stitched", "capped", "sinks")
SHOWN = [("explorer", kind) for kind in KINDS] + [("file", kind) for kind in IN_A_FILE]


@pytest.fixture(params=SHOWN, ids="-".join)
def shown(request, places):
    """A page, and a call of one kind: its address, the call and its last head."""
    host, kind = request.param
    where, call = places(*KINDS[kind])
    return request.getfixturevalue(host), where, call, call.heads[-1]


def cells(weights):
    """The largest weight, one in the middle, and the smallest that is not masked."""
    order = weights.flatten().argsort(descending=True)
    seen = int((weights > 0).sum())
    places = [int(order[n]) for n in (0, seen // 3, seen - 1)]
    return [divmod(place, weights.shape[1]) for place in places]


def vectors_of(call, head, query, key):
    """The query and key vectors of a weight, in float64."""
    causes = call.causes
    shared = len(causes.query) // len(causes.key)
    at = call.heads.index(head)
    return (
        causes.query[at, query].double().numpy(),
        causes.key[at // shared, key].double().numpy(),
    )


def test_a_weight_and_its_calculation(shown):
    page, where, call, head = shown
    weights = call.weights(head)
    for query, key in cells(weights):
        page.cell(where, head, query, key)
        true = float(weights[query, key])
        assert as_shown(page.weight, true), (page.weight, true)
        page.soon(lambda query=query, key=key: check_names(page, call, query, key))
        text = page.region.inner_text()
        assert f"{call.proof}, layout {call.layout}" in text
        rank = int((weights[query] > true).sum()) + 1
        hidden = call.masked_cells((1, 1), head, slice(query, query + 1))
        assert f"{rank}" in text
        assert f"of {int((~hidden).sum())} in its row" in text
        check_steps(page, call, vectors_of(call, head, query, key), true)
        check_products(page, *vectors_of(call, head, query, key))
        page.soon(lambda query=query: check_largest(page, call, weights[query]))


def check_names(page, call, query, key):
    text = page.region.inner_text().replace("\n", "")
    assert f"{call.query_tokens[query]}{query}" in text
    assert f"{call.key_tokens[key]}{key}" in text


def check_steps(page, call, vectors, true):
    steps = page.steps()
    product = float(vectors[0] @ vectors[1])
    assert as_shown(steps[0][1], product)
    scaled = product * call.causes.scale
    assert as_shown(steps[1][1], scaled)
    words = " ".join(what for what, _ in steps)
    assert ("cap" in words) == (call.causes.softcap is not None)
    if call.causes.softcap is not None:
        (shown,) = [value for what, value in steps if "cap" in what]
        assert as_shown(shown, call.causes.softcap * np.tanh(scaled / call.causes.softcap))
    score, total = (
        number(part.strip("() \n")) for part in steps[-1][0].partition("(")[2].split(" − ", 1)
    )
    assert np.exp(score - total) == pytest.approx(true, rel=3e-4, abs=1e-6)
    assert as_shown(steps[-1][1], true)


def check_products(page, query, key):
    rows = [row for row in page.table("query × key") if row[0].isdigit()]
    products = query * key
    order = np.abs(products).argsort()[::-1]
    assert [int(row[0]) for row in rows] == [int(d) for d in order[: len(rows)]]
    for dimension, *shown in (row[:4] for row in rows):
        d = int(dimension)
        for text, value in zip(shown, (query[d], key[d], products[d]), strict=True):
            assert as_shown(text, value)


def check_largest(page, call, row):
    best = row.topk(min(8, int((row > 0).sum())))
    rows = page.table("largest weights")
    assert rows
    for (token, shown, *_), key, weight in zip(rows, *best[::-1], strict=False):
        assert as_shown(shown, float(weight))
        assert token == f"{call.key_tokens[key]}{int(key)}"
    learned = [row for row in rows if "sink" in row[0]]
    assert len(learned) == (call.causes.sinks is not None)
    for _, shown, *_ in learned:
        assert as_shown(shown, 1 - float(row.sum()))


def test_masked_cells_are_shown_as_masked(explorer, places):
    for name, head, query, key in (("causal", 1, 3, 9), ("windowed", 0, 12, 2)):
        where, call = places(name)
        assert call.weights(head)[query, key] == 0
        explorer.cell(where, head, query, key)
        assert explorer.weight == "masked"
        assert "mask" in explorer.region.inner_text()


def test_a_masked_cell_of_a_pooled_map_is_not_zero(explorer, places):
    where, call = places("long")
    assert call.weights(1, queries=[300], keys=[700]) == 0
    explorer.cell(where, 1, 300, 700)
    announcement = explorer.page.locator("[data-announcement]")

    def check():
        assert announcement.inner_text().startswith("query 300 ")
        assert announcement.inner_text().endswith(": masked")

    explorer.soon(check)


def test_a_tiny_weight_is_not_shown_as_zero(explorer, places):
    where, call = places("padded", "text 1")
    weights = call.weights(0)
    query, key = divmod(int(weights.argmin()), weights.shape[1])
    assert 0 < weights[query, key] < 1e-4
    explorer.cell(where, 0, query, key)
    assert as_shown(explorer.weight, float(weights[query, key]))
    assert "e" in explorer.weight


def test_the_value_norm_of_a_weight(explorer, places):
    where, call = places("with values")
    weight, carried = call.weights(2)[8, 3], call.value_norm(2)[8, 3]
    explorer.cell(where, 2, 8, 3)
    text = explorer.region.inner_text()
    length, moved = re.search(r"is (\S+)\. Times the weight, .* norm (\S+)\.", text).groups()
    assert as_shown(length, float(carried / weight))
    assert as_shown(moved, float(carried))


def test_a_csv_has_every_weight_in_view(shown):
    page, where, call, head = shown
    page.cell(where, head, 0, 0)
    path, name = page.downloaded("CSV")
    assert name.endswith(".csv")
    first, *rows = csv.reader(io.StringIO(path.read_text("utf-8")))
    N, M = call.shape[1:]
    assert [int(key.split()[0]) for key in first[2:]] == list(range(M))
    assert [int(row[0]) for row in rows] == list(range(N))
    weights_in_file = torch.tensor([[float(weight or "nan") for weight in row[2:]] for row in rows])
    weights = call.weights(head).masked_fill(call.masked_cells((1, 1), head), torch.nan)
    torch.testing.assert_close(weights_in_file, weights, atol=1e-7, rtol=3e-6, equal_nan=True)


def test_the_profile_of_a_row_and_of_a_column(shown):
    page, where, call, head = shown
    weights = call.weights(head)
    query, key = cells(weights)[1]
    page.cell(where, head, query, key)
    profile = page.page.get_by_role("region", name="Profile")

    def check(line):
        largest = profile.get_by_text("largest").inner_text().partition("largest ")[2]
        assert as_shown(largest.split()[0], float(line.max()))

    profile.get_by_role("button", name="what it attends to").click()
    page.soon(lambda: check(weights[query]))
    profile.get_by_role("button", name="what attends to it").click()
    page.soon(lambda: check(weights[:, key]))


def test_the_scores_of_a_head(shown):
    page, where, call, head = shown
    page.cell(where, head, 0, 0)
    heads = page.page.get_by_role("region", name="Heads")
    known, at = call.summary(), call.heads.index(head)

    def check():
        scores = dict(pairs(heads))
        for name in ("entropy", "distance"):
            true = float(known[name][at])
            assert (name in scores) == (true == true)
            assert name not in scores or as_shown(scores[name], true)

    page.soon(check)
