"""Generation in the page: the map grows; generation stops and continues from another token."""

import re
from pathlib import Path

import small_recordings
import torch
from page_reader import Served, as_shown, faults, number, unit

import heedful
from heedful.loaded import LoadedGPT
from heedful.models import GPT, GPTConfig
from heedful.views.explorer.generation import Generation

SHAPE = {**small_recordings.SHAPE, "context_length": 900, "heads": 3, "positions": "rotary"}


def made(texts):
    model = small_recordings.sharp(GPT(GPTConfig(**SHAPE)), 12, 0.3)
    return Generation(LoadedGPT(model, small_recordings.LETTERS, Path("letters")), texts, "a ")


def test_a_late_frame_does_not_move_the_focus(browser, opened):
    with Served({}, generation=made) as served:
        page = opened(served.address).page
        page.evaluate(
            """() => {
                const soon = window.requestAnimationFrame.bind(window);
                window.frames_drawn = 0;
                const late = (draw) => (draw(performance.now()), window.frames_drawn++);
                window.requestAnimationFrame = (draw) => soon(() => setTimeout(late, 300, draw));
            }"""
        )
        page.get_by_role("button", name="Sampling").click()
        seed = page.get_by_role("spinbutton", name="seed")
        seed.focus()
        drawn = page.evaluate("window.frames_drawn")
        page.wait_for_function("(before) => window.frames_drawn > before", arg=drawn)
        page.keyboard.type("7")
        assert seed.input_value() == "7"
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Sampling").click()  # focuses the first field
        first = page.get_by_role("spinbutton", name="temperature")
        first.and_(page.locator(":focus")).wait_for()
        page.close()  # before its server


def test_a_prompt_grows_stops_and_continues_from_another_token(browser, opened):
    from playwright.sync_api import expect  # which is only there where browsers are tested

    with Served({}, generation=made) as served:
        explorer = opened(served.address, allowed=["400"])
        page, generation = explorer.page, served.explorer.generation
        part = page.get_by_role("region", name="Generation")
        part.get_by_text("2 tokens of the prompt, 0 added").wait_for()
        assert page.get_by_role("button", name="New text").count() == 0
        page.keyboard.press("g")
        prompt = part.get_by_role("textbox", name="Prompt for letters")
        prompt.fill("A HEAD")  # letters that the model does not have
        prompt.press("Enter")
        part.get_by_role("alert").wait_for()

        prompt.fill("a head ")
        part.get_by_role("spinbutton", name="tokens").fill("800")
        page.get_by_role("button", name="Sampling").click()
        page.get_by_role("spinbutton", name="seed").fill("7")
        page.keyboard.press("Escape")
        part.get_by_role("button", name="Generate").click()
        text = page.get_by_role("listbox", name="tokens of the text")
        sizes = [0]
        # more than the 15 tokens of the text below, so that the two texts differ in size
        while len(set(sizes)) < 4 or sizes[-1] < 20:
            sizes.append(text.get_by_role("option").count())
            assert sizes == sorted(sizes)
        part.get_by_role("button", name="Stop").click()
        part.get_by_text("stopped").wait_for()
        ids = list(generation._text.ids)
        size = len(ids)
        assert 7 < size < 807
        status = f"7 tokens of the prompt, {size - 7} added · seed 7"
        expect(part).to_contain_text(status, timeout=20_000)  # its error shows the actual text
        label = text.get_by_role("option").nth(8).get_attribute("aria-label")
        assert re.search(r"probability (less than )?\d+(\.\d+)?\s%", label)

        def check_weight(ids):
            """Compare a weight with that of one pass over the final text."""
            with heedful.record(generation._loaded.model) as recording:
                generation._loaded.model(torch.tensor([ids]))
            text_number, last = generation._text.number, len(ids) - 1
            explorer.cell(f"{text_number}.0.1", 2, last, 3)
            expected = float(recording[1].weights(2, [last], [3]))
            assert abs(number(explorer.weight) - expected) <= unit(explorer.weight)

        check_weight(ids)
        text.get_by_role("option").nth(9).click()
        alternatives = part.get_by_role("group", name="Alternatives to token 9")
        alternatives.get_by_role("button").nth(9).wait_for()
        assert not faults(page)
        second = alternatives.get_by_role("button").nth(1)
        part.get_by_role("spinbutton", name="tokens").fill("5")
        second.focus()
        page.keyboard.press("Enter")
        part.get_by_text("7 tokens of the prompt, 8 added").wait_for()
        part.get_by_text("stopped").wait_for()
        assert generation._text.ids[:9] == ids[:9]
        assert generation._text.ids[9] != ids[9]
        check_weight(generation._text.ids)
        page.get_by_role("combobox", name="Text").select_option(label="a head")
        part.get_by_role("button", name="Show the newest text").click()
        path, name = explorer.downloaded("Recording")
        assert name.endswith(".safetensors")
        assert heedful.load(path)[0].shape == (3, 15, 15)
        page.keyboard.press("y")  # goes on
        part.get_by_text("7 tokens of the prompt, 13 added").wait_for()
        where = f"{generation._text.number}.0.1"
        explorer.show(call=where, head=2, pane="segments", marks="begin:0-5;end:9-20")
        call = generation._catalogue.call(generation._text.number, 0, 1, 20)
        rows = call.segments({"begin": slice(0, 5), "end": slice(9, 20)})
        [share] = [row.share for row in rows if row[1:4] == (2, "end", "begin")]
        table = page.get_by_role("region", name="Attention between segments")
        line = table.get_by_role("row").nth(2)
        assert as_shown(line.get_by_role("button").first.inner_text().strip(), share)
        page.close()  # before its server
