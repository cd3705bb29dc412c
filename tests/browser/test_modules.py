"""Modules of the page, run by node without a browser and compared with NumPy."""

import csv
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from node import returned

from heedful.views import explorer
from heedful.views.explorer.wire import packed

PAGE = Path(explorer.__file__).parent / "page"


@pytest.fixture
def computed(tmp_path):
    """Evaluate a line of JavaScript with a `module` and `bytes`."""

    def call(module, line, data=b""):
        return returned(tmp_path, {"module": PAGE / module}, line, data=data)

    return call


def test_every_half_precision_number_equals_numpys(computed):
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    data = packed({"word": "half"}, numbers=torch.from_numpy(halves.reshape(256, 256)))
    word, shape, numbers = computed("wire.js", "((answer) => [answer.word, answer.numbers.shape, "
                     "[...answer.numbers.data]])(module.unpacked(bytes))", data)  # fmt: skip
    assert (word, shape) == ("half", [256, 256])
    np.testing.assert_array_equal(np.array(numbers, float), halves.astype(float))


def test_arrays_of_every_type_and_numbers_that_json_lacks(computed):
    arrays = {"single": torch.randn(3, 5), "whole": torch.arange(7), "bytes": torch.ones(3).byte()}
    head = {"infinite": -torch.inf, "none": torch.nan, "name": "é</script>\u2028"}
    answer = computed("wire.js", "((all) => ({...all, single: [...all.single.data], "
                     "whole: [...all.whole.data], bytes: [...all.bytes.data], "
                     "infinite: module.number(all.infinite), none: module.number(all.none)}))"
                     "(module.unpacked(bytes))", packed(head, **arrays))  # fmt: skip
    assert answer["name"] == head["name"]
    assert (answer["infinite"], answer["none"]) == ("-Infinity", "NaN")
    np.testing.assert_allclose(answer["single"], arrays["single"].flatten(), rtol=1e-7)
    assert (answer["whole"], answer["bytes"]) == (list(range(7)), [1, 1, 1])


def lightness(colours):
    """The lightness in OKLab of sRGB colours (n, 3) of 0 to 255, by its definition."""
    part = colours / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    cones = linear @ np.array(
        [[0.4122214708, 0.5363325363, 0.0514459929],
         [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]).T  # fmt: skip
    return np.cbrt(cones) @ [0.2104542553, 0.793617785, -0.0040720468]


@pytest.mark.parametrize("dark", [False, True])
def test_lightness_of_the_colours_is_linear(computed, dark):
    words = computed("map/colours.js", f"[...module.table({str(dark).lower()}).slice(0, 256)]")
    colours = np.array(words, np.uint32).view(np.uint8).reshape(256, 4)
    assert (colours[:, 3] == 255).all()
    light = lightness(colours[:, :3].astype(float))
    even = np.linspace(light[0], light[-1], 256)
    assert np.abs(light - even).max() < 0.01
    assert (np.sign(np.diff(light[::4])) == (1 if dark else -1)).all()  # monotonic
    assert abs(light[-1] - light[0]) > 0.65
    grey = colours[::8, :3] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(grey) * (1 if dark else -1) > 0).all()  # in grey print too


@pytest.mark.parametrize("kind", ["linear", "sqrt", "log"])
def test_the_place_of_weights_and_masked_cells_on_the_scale(computed, kind):
    weights, highest = [0.0, 1e-5, 1e-3, 0.04, 0.3, 0.5], 0.5
    places = computed("map/colours.js", f"{json.dumps(weights)}.map((weight) => "
                     f"module.share(weight, {highest}, {json.dumps(kind)}))")  # fmt: skip
    part = np.array(weights) / highest
    with np.errstate(divide="ignore"):
        expected = {
            "linear": part,
            "sqrt": np.sqrt(part),
            "log": np.maximum(0, 1 + np.log10(part) / 4),  # four decades
        }
    np.testing.assert_allclose(places, expected[kind], atol=1e-12)
    pixels = computed("map/colours.js", "[...module.paintPixels(Float32Array.of(0, NaN, 0.5), "
                      f"Uint32Array.from({{length: 256}}, (_, i) => i), 0.5, "
                      f"{json.dumps(kind)}, 999)]")  # fmt: skip
    assert pixels == [0, 999, 255]


def test_scores_of_the_previous_text_are_not_requested(computed):
    """A call that is not in the current text is skipped; later requests continue."""
    result = computed(
        "heads/scores.js",
        """await (async () => {
        const requested = [];
        const call = { name: "a", layer: 0, heads: [0], pass: 0 };
        const source = { ask: async (_, { call }) => (requested.push(call), { kinds: ["-"] }) };
        const signal = (value) => ({ value, peek: () => value });
        const [path, calls] = [signal([0, 1, 0]), signal([call])];
        const [growingRecording, callIdOf] = [{ peek: () => null }, (path) => path.join(".")];
        const heads = new module.Heads(
            source, { about: { recordings: [] }, path, calls, growingRecording, callIdOf });
        await heads.ask("scores", 5);
        await heads.work();
        return [requested, heads.busy];
    })()""",
    )
    assert result == [["0.1.0"], False]


def test_recordings_and_texts_without_calls_are_skipped(computed):
    about = "{recordings: [{texts: []}, {texts: [{calls: []}, {calls: [{shape: [1, 2, 3]}]}]}]}"
    assert computed("state.js", f"new module.State({about}).path.value") == [1, 1, 0]
    line = """(() => { try { new module.State({recordings: [{texts: []}]}); }
                       catch (error) { return error.message; } })()"""
    assert computed("state.js", line).startswith("No call of attention was recorded")


def test_calls_of_one_layer_have_different_titles(computed):
    names = ["encoder.0.attention", "decoder.0.attention", "decoder.0.cross", "", "x", "x"]
    calls = [{"name": name, "layer": None if n > 2 else 0, "pass": 0, "kind": "causal"}
             for n, name in enumerate(names)]  # fmt: skip
    titles = computed("heads/scores.js", f"((calls) => {{ module.setTitles({{recordings: [{{texts: "
                     f"[{{calls}}]}}]}}); return calls.map(module.callTitle); }})"
                     f"({json.dumps(calls)})")  # fmt: skip
    assert titles == [
        "layer 0, encoder attention", "layer 0, decoder attention", "layer 0, decoder cross",
        "attention", "x", "x, call 2",
    ]  # fmt: skip


def test_invisible_characters_are_shown_as_signs(computed):
    tokens = ["a b", "\n", "\x00\x1b", "\x7f", "\u202eevil", "日本", "🙂", ""]
    texts = computed("tokens.js", f"{json.dumps(tokens)}.map((token) => module.readable(token))")
    assert texts[0] == "a·b"
    assert texts[5:7] == tokens[5:7]
    for text in texts:
        assert text
        assert not any(ord(c) < 32 or ord(c) == 127 or 0x202A <= ord(c) <= 0x202E for c in text)


LATE = """await (async () => {
  let status = { recording: 0, tokens: 5 };
  let arrive = () => {};
  const arrival = new Promise((resolve) => { arrive = resolve; });
  const constant = (value) => ({ peek: () => value });
  const text = Object.assign(Object.create(module.LiveText.prototype), {
    status: { peek: () => status, get value() { return status; }, set value(s) { status = s; } },
    byRecording: new Map(), painters: () => [], _prefetch: () => arrival,
    state: { about: { recordings: [{}, {}] }, growingRecording: {}, path: constant([0, 0, 0]),
             head: constant(0), view: constant({}), callCount: () => 1, choose() {},
             setTokenCount() {} },
  });
  const chances = { data: [] };
  const late = text._apply({ recording: 0, tokens: 6, chances });
  await text._apply({ recording: 1, tokens: 3, chances });
  arrive();
  await late;
  await text._apply({ recording: 0, tokens: 9, chances });
  return [status.recording, status.tokens];
})()"""


def test_a_late_status_of_an_earlier_text_is_ignored(computed):
    """The user replaces a token while the page fetches data of the earlier text."""
    assert computed("text/live_text.js", LATE) == [1, 3]


def test_a_token_is_no_formula_in_a_csv_file(computed):
    formulas = ["=1+2", "@SUM(1,2)", "+1", "-1", "-", "\t=1", "\r=1", "\n=1", '=HYPERLINK("x","y")']
    others = ["the", " =1", "1-2", "'", "", 'a "quoted", one', "a\nb", "a=1"]
    fields = f"{json.dumps(formulas + others)}.map(module.quoted).join()"
    [row] = csv.reader(io.StringIO(computed("map/save.js", fields), newline=""))
    assert row == [*(f"'{text}" for text in formulas), *others]


def test_svg_with_any_text_is_xml(computed):
    text = "".join(map(chr, [*range(256), 0x2028, 0xFFFE, 0xFFFF])) + "]]><b>&amp;"
    draw = "((pen) => { pen.fillText(%s, 1, 2); return pen.text(9, 9); })(new module.SvgPen({}))"
    svg = ET.fromstring(computed("map/svg_canvas.js", draw % json.dumps(text)))
    [shown] = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert shown.endswith("]]><b>&amp;")
    assert {char for char in text if char.isprintable()} <= {*shown}
    assert "␛" in shown
