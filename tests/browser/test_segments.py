"""Segments marked in the page, served or in one file: the shares equal `recording.segments`."""

import re

import pytest
from page_reader import as_shown
from small_recordings import KINDS

from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue

WHO = "Attention between segments"
MARKS = "begin:0-3,8-9;middle:4-7"

SECOND = "loo"  # the first words of the second segment, its name


def table(page):
    """The names of the columns, and the name and shares of each row."""
    where = page.page.get_by_role("region", name=WHO).get_by_role("table")
    columns = where.locator("thead th bdi").all_inner_texts()
    lines = where.locator("tbody tr").evaluate_all(
        "rows => rows.map((row) => [row.querySelector('bdi').innerText,"
        " [...row.querySelectorAll('button')].map((cell) => cell.innerText.trim())])"
    )
    return columns, lines


def check(page, call, parts, head, queries=None):
    """Compare the table with the library's, of a head or of the mean over heads."""
    segments = call.segments(parts, queries=queries)
    rows = [
        row for row in (segments.over_heads() if head is None else segments) if row.head == head
    ]
    columns, lines = table(page)
    assert [name for name, _ in lines] == list(dict.fromkeys(row.from_ for row in rows))
    for name, shares in lines:
        mine = {row.to: row for row in rows if row.from_ == name}
        assert [to for to in mine if to != "learned sink"] == columns
        for to, share in zip(columns, shares, strict=True):
            true = mine[to]
            if true.share is None or true.chance == 0:
                assert share == "–"
            else:
                assert as_shown(share, true.share), (name, to)


def drag(page, first, last):
    """Drag the mouse over tokens of the text."""
    mouse = page.page.mouse
    for at, does in ((first, mouse.down), (last, mouse.up)):
        box = page.page.locator(f'[data-at="{at}"]').last.bounding_box()
        mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
        does()


def marks_in(page):
    return page.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('marks')")


def test_marking_by_mouse_and_keyboard_gives_the_librarys_shares(explorer, places):
    page, (where, call) = explorer, places("causal", layer=1)
    page.show(call=where, head=2)
    page.soon(lambda: page.page.get_by_role("option", name=re.compile(", 5$")).first.wait_for())
    page.page.keyboard.press("m")
    who = page.page.get_by_role("region", name=WHO)
    who.wait_for()
    drag(page, 0, 4)
    who.get_by_role("button", name="Mark", exact=True).click()
    name = who.get_by_label("Name of the segment")
    name.fill("begin")
    name.press("Tab")
    text = page.page.get_by_role("listbox", name="tokens of the text")
    text.focus()
    text.press("Home")
    for key in ["ArrowRight"] * 6 + ["Shift+ArrowRight"] * 3 + ["Enter"]:
        text.press(key)
    who.get_by_role("table").wait_for()
    parts = {"begin": slice(0, 5), SECOND: slice(6, 10)}
    page.soon(lambda: check(page, call, parts, 2))
    who.get_by_role("button", name="layer’s mean").click()
    page.soon(lambda: check(page, call, parts, None))
    who.get_by_role("button", name="this head").click()
    # a second range, entered by numbers
    who.get_by_label("First token").fill("12")
    who.get_by_label("Last token").click()  # the first field loses the focus and applies its value
    who.get_by_label("Last token").press_sequentially("13")
    who.get_by_label("Last token").press("Tab")
    who.get_by_label("Add the tokens to").select_option("begin")
    parts["begin"] = [*range(5), 12, 13]
    page.soon(lambda: check(page, call, parts, 2))
    assert re.search(r"rest\s+6 tokens", who.inner_text())
    page.soon(lambda: compare(marks_in(page), f"begin:0-5,12-14;{SECOND}:6-10"))
    # heads sorted by one pair: every head of both layers, the highest share first
    who.get_by_label("From segment").select_option(SECOND)
    who.get_by_label("To segment").select_option("begin")
    who.get_by_role("button", name="highest").click()
    page.soon(lambda: check_sorted(who, [places("causal", layer=n)[1] for n in (0, 1)], parts))
    # delete one segment, then all
    who.get_by_role("button", name=f"Delete {SECOND}").click()
    page.soon(lambda: check(page, call, {"begin": parts["begin"]}, 2))
    who.get_by_role("button", name="Delete begin").click()
    assert who.get_by_role("table").count() == 0
    page.page.keyboard.press("Escape")


def compare(actual, expected):
    assert actual == expected


def check_sorted(who, calls, parts):
    shown = who.get_by_role("listitem").filter(has=who.page.locator("b")).all_inner_texts()
    true = sorted(
        (row.share, f"layer {row.layer}, head {row.head}")
        for call in calls
        for row in call.segments(parts)
        if (row.from_, row.to) == (SECOND, "begin")
    )
    words = [line.split("\n") for line in shown]
    assert [f"{line[0]}, {line[1]}" for line in words] == [name for _, name in reversed(true)]
    assert all(as_shown(line[-1], share) for line, (share, _) in zip(words, reversed(true),
                                                                     strict=True))  # fmt: skip


@pytest.mark.parametrize("kind", ["windowed", "sinks", "cross"])
def test_a_file_computes_shares_and_has_initial_segments(opened, tmp_path, kind):
    recording = KINDS[kind]()
    segments = {"early": slice(1, 4), "late": [5, 7]}
    path = tmp_path / "page.html"
    one_file.write(path, Catalogue({kind: recording}, segments=segments), "a file")
    page = opened(
        f"{path.as_uri()}#call=0.0.{len(recording) - 1}&head=1&pane=segments",
        "file://",
        offline=True,
    )
    call = recording[-1]
    target = {"target": slice(None)} if kind == "cross" else None
    if kind == "cross":
        call = next(call for call in recording if call.is_cross)
        at = list(recording).index(call)
        page.show(call=f"0.0.{at}", head=1, pane="segments")
    page.page.get_by_role("table").first.wait_for()
    page.soon(lambda: check(page, call, segments, 1, target))
    where = page.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('call')")
    page.show(call=where, head=1, pane="segments", marks=MARKS)
    mine = {"begin": [0, 1, 2, 8], "middle": slice(4, 7)}
    page.soon(lambda: check(page, call, mine, 1, target))
