"""The map: requests, touch, two maps, the address, and two pages in one document."""

import re

import pytest
import torch
from page_reader import as_shown

from heedful.views.bundler import one_script
from heedful.views.explorer.one_file import PAGE
from heedful.views.explorer.wire import packed, unpacked

SIDE = 256


def the_map(page):
    return page.page.get_by_role("application", name=re.compile("map of weights", re.I)).first


def requests(page, question, action):
    """The URLs of a question that the page asks during an action."""
    urls = []
    note = lambda request: f"/ask/{question}?" in request.url and urls.append(request.url)  # noqa: E731
    page.page.on("request", note)
    action()
    page.page.wait_for_timeout(500)
    page.page.remove_listener("request", note)
    return urls


def view(page):
    """Left key, upper query, pixels per cell: from the address."""
    text = page.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('view')")
    return [float(part) for part in text.split(",")] if text else None


def settled(page):
    """The view once the address, which follows moves with a delay, has stopped changing."""

    def unchanged():
        before = view(page)
        page.page.wait_for_timeout(300)
        check(before and view(page) == before)

    page.soon(unchanged)
    return view(page)


def word(page):
    return page.page.locator(".legend-bar .word").inner_text()


def test_only_visible_and_unmasked_tiles_are_requested(opened, served, places):
    where, call = places("long")
    page = opened(served.address, served.origin)

    def look():
        page.show(call=where, head=1, view="600,300,1")
        page.soon(lambda: check("exact" in word(page)))

    urls = requests(page, "tile", look)
    tiles = {tuple(map(int, re.search(r"place=([\d%C,]+)", url)[1].replace("%2C", ",").split(",")))
             for url in urls if f"call={where}&" in url and "place=1" in url}  # fmt: skip
    fine = {(row, column) for _, level, row, column in tiles if level == 0}
    assert fine == {(2, 2)}, "the causal mask excludes three of the four tiles in view"
    assert len(urls) == len(set(urls)), "nothing is requested twice"
    assert call.kind == "causal"


def check(is_so):
    assert is_so


def check_weight(readout, true):
    text = readout.inner_text().split("\n")[0]
    assert text != "…"
    assert as_shown(text, true)


def test_sampled_tiles_are_marked_and_requested_until_they_are_exact(opened, served, places):
    where, _ = places("long")
    page = opened(served.address, served.origin)
    times = {}

    def sampled(route):
        """The server's answer; the first one is marked as sampled."""
        answer = route.fetch()
        head, arrays = unpacked(answer.body())
        times[route.request.url] = times.get(route.request.url, 0) + 1
        if times[route.request.url] == 1:
            tile = torch.from_numpy(arrays["tile"].copy())
            body = packed({**head, "word": "sampled", "done": 0.4}, tile=tile)
            return route.fulfill(body=body, content_type="application/octet-stream")
        return route.fulfill(response=answer)

    page.page.route("**/ask/tile?**", sampled)
    page.show(call=where, head=0)
    page.soon(lambda: check("sampled" in word(page)))
    page.soon(lambda: check(word(page).endswith("exact")), 15)
    assert max(times.values()) > 1


def test_the_profile_shows_only_numbers_of_its_row_and_marks_sampled_ones(opened, served, places):
    where, call = places("causal")
    page = opened(served.address, served.origin)
    page.cell(where, 1, 9, 4)
    profile = page.page.get_by_role("region", name="Profile")
    largest = profile.get_by_text("largest")
    largest.wait_for()
    held, answering = [], []  # requests of the profile and of the text pane

    def hold(route):
        if answering:
            route.continue_()
        else:
            held.append(route)

    page.page.route("**/ask/row?**", hold)
    page.cell(where, 1, 10, 4)
    largest.wait_for(state="detached")
    assert "…" in profile.get_by_title("Select this cell").inner_text()
    answering.append(True)
    for route in held:
        head, arrays = unpacked(route.fetch().body())
        weights = torch.from_numpy(arrays["weights"].copy())
        body = packed({**head, "word": "sampled", "done": 0.4}, weights=weights)
        route.fulfill(body=body, content_type="application/octet-stream")
    profile.get_by_text("sampled").wait_for()
    profile.get_by_text("sampled").wait_for(state="detached")
    text = largest.inner_text().partition("largest ")[2].split()[0]
    assert as_shown(text, float(call.weights(1)[10].max()))


def test_a_finger_pans_two_zoom_and_a_tap_pins(opened, served, places):
    where, call = places("causal")
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    page = opened(f"{served.address}#call={where}&head=1", **phone)
    page.soon(lambda: check(word(page).endswith("exact")), 15)
    box = the_map(page).bounding_box()
    x, y = box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.6
    touch = page.page.context.new_cdp_session(page.page)

    def fingers(kind, *at):
        points = [{"x": x + dx, "y": y + dy, "id": i} for i, (dx, dy) in enumerate(at)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    fingers("touchStart", (-20, 0), (20, 0))
    for step in range(1, 7):
        fingers("touchMove", (-20 - 8 * step, 0), (20 + 8 * step, 0))
    fingers("touchEnd")
    before = settled(page)
    assert before[2] > 1.5 * box["width"] / call.shape[2]
    fingers("touchStart", (0, 0))
    for step in range(1, 7):
        fingers("touchMove", (-8 * step, -6 * step))
    fingers("touchEnd")
    page.soon(lambda: check(view(page)[:2] != before[:2]))
    assert view(page)[2] == pytest.approx(before[2])
    assert "pinned" not in page.page.evaluate("location.hash")
    fingers("touchStart", (0, 0))
    fingers("touchEnd")
    page.soon(lambda: check("pinned=1" in page.page.evaluate("location.hash")))
    readout = page.page.locator(".readout").first.inner_text().split("\n")
    query, key = (int(re.search(r"\d+", line)[0]) for line in readout[1:3])
    true = float(call.weights(1)[query, key])
    assert readout[0] == "masked" if key > query else as_shown(readout[0], true)


def test_invalid_parts_of_an_address_are_ignored(opened, served, places):
    where, _ = places("causal")
    page = opened(served.address, served.origin)
    bad = {
        "head": "77", "view": "1,,x", "cell": "99,-1", "colours": "log", "reduce": "most",
        "row": "4", "column": "four", "beside": "9.9.9.9", "tab": "../x", "theme": "pink",
    }  # fmt: skip
    page.show(call=where, **bad)
    page.soon(lambda: check("row=4" in page.page.evaluate("location.hash") and "head=0" in
                            page.page.evaluate("location.hash")))  # fmt: skip
    parameters = page.page.evaluate(
        "Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"
    )
    assert parameters == {"call": where, "head": "0", "colours": "log", "row": "4"}


def test_two_maps_have_one_scale_and_move_together(opened, served, places):
    where, call = places("causal")
    page = opened(served.address, served.origin)
    page.show(call=where, head=0, cell="9,4", pinned=1)
    page.wait_for_weight(0, 9, 4)
    page.page.get_by_role("button", name="Beside").click()
    second = page.page.get_by_role("figure", name="The second map")
    second.get_by_role("combobox", name="Text").select_option(where.rpartition(".")[0])
    second.get_by_role("combobox", name="Head", exact=True).select_option("2")
    for figure, head in ((page.page.get_by_role("figure", name="The map"), 0), (second, 2)):
        readout = figure.locator(".readout")
        true = float(call.weights(head)[9, 4])
        page.soon(lambda readout=readout, true=true: check_weight(readout, true))
    box = second.get_by_role("application").bounding_box()
    page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.page.mouse.wheel(0, -600)
    page.soon(lambda: check(view(page)))
    page.soon(lambda: check(f"beside={where}.2" in page.page.evaluate("location.hash")))
    page.page.get_by_role("button", name="Close the second map").click()
    assert second.count() == 0


def test_a_key_highlights_the_row_of_the_cell(opened, served, places):
    where, _ = places("causal")
    page = opened(served.address, served.origin)
    page.show(call=where, head=1, cell="9,4", pinned=1)
    page.wait_for_weight(1, 9, 4)
    the_map(page).focus()
    page.page.keyboard.press("r")
    page.page.keyboard.press("ArrowDown")
    page.soon(lambda: check("row=9" in page.page.evaluate("location.hash")))
    announcement = page.page.locator("[data-announcement]")
    page.soon(lambda: check(announcement.inner_text().startswith("query 10 ")))
    page.page.keyboard.press("ArrowUp")
    page.page.keyboard.press("r")
    page.soon(lambda: check("row=" not in page.page.evaluate("location.hash")))


PARTS = """async () => {
  const added = [];
  for (const target of [window, document, document.body]) {
    const add = target.addEventListener.bind(target);
    target.addEventListener = (name, ...rest) => (added.push(name), add(name, ...rest));
  }
  const { mount } = await import("/app.js");
  const { unpacked } = await import("/wire.js");
  const source = { async ask(question, about = {}, signal) {
    const headers = { Authorization: `Bearer ${localStorage.getItem("heedful: session")}` };
    const address = `/ask/${question}?${new URLSearchParams(about)}`;
    const answer = await fetch(address, { signal, headers });
    return unpacked(await answer.arrayBuffer());
  } };
  document.body.replaceChildren();
  const style = document.createElement("link");
  Object.assign(style, { rel: "stylesheet", href: "/page/page.css" });
  document.head.append(style);
  for (const name of ["first", "second"]) {
    const part = document.createElement("div");
    part.dataset.name = name;
    document.body.append(part);
    await mount(part, source);
  }
  return added;
}"""


def answering(script):
    """A route that answers with a script."""
    return lambda route: route.fulfill(content_type="text/javascript", body=script)


def test_two_pages_in_one_document_do_not_affect_it(opened, served):
    page = opened(served.address, served.origin, allowed=["404"])
    the_map(page).wait_for()  # the browser has the token
    address = f"{served.origin}/page/page.css"  # a page of the same origin with no explorer
    for name in ("app.js", "wire.js"):
        body = one_script(PAGE / name)
        page.page.route(f"**/{name}", answering(body))
    page.page.goto(address)
    added = page.page.evaluate(PARTS)
    assert added == []
    parts = [page.page.locator(f"[data-name={name}]") for name in ("first", "second")]
    for part in parts:
        part.get_by_role("application", name=re.compile("map of weights", re.I)).first.wait_for()
    announcements = [part.locator("[data-announcement]") for part in parts]
    for text in announcements:
        page.soon(lambda text=text: check(text.inner_text().endswith(tuple("0123456789"))))
    before = [text.inner_text() for text in announcements]
    parts[0].get_by_role("application", name=re.compile("map of weights", re.I)).first.focus()
    page.page.keyboard.press("ArrowDown")
    page.soon(lambda: check(announcements[0].inner_text() != before[0]))
    page.page.wait_for_timeout(300)
    assert announcements[1].inner_text() == before[1]
    assert page.page.evaluate("location.href") == address
    ids = page.page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids)), "ids are unique"
