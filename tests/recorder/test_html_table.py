"""HTML tables of recordings: a line per call with its pictures, escaped, of bounded size."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.models import GPT, GPTConfig
from heedful.pictures.thumbnails import GREY, strip
from heedful.recording import html_table


class Attend(nn.Module):
    def forward(self, x):
        return scaled_dot_product_attention(x, x, x, is_causal=True)


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Attend() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def recorded(layers, heads, N):
    model = Model(layers)
    with heedful.record(model) as recording, torch.no_grad():
        model(torch.randn(1, heads, N, 4))
    return recording


def pictures(html):
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB") for data in images]


class Balanced(HTMLParser):
    """A parser that fails if a tag is not closed."""

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def parsed(html):
    parser = Balanced()
    parser.feed(html)
    assert not parser.open
    return parser.texts


def test_the_table_has_a_line_per_call():
    recording = recorded(3, 2, 5)
    html = recording._repr_html_()
    texts = parsed(html)
    assert texts[0].startswith("Recording of 3 calls")
    assert [text for text in texts if text.startswith("layers.")] == [c.name for c in recording]
    assert texts.count("causal") == 3
    assert texts.count("2, 5 × 5") == 3
    assert [texts.count(word) for word in ("proved", "usual")] == [3, 3]
    assert len(pictures(html)) == 3


def test_pictures_show_the_maps():
    recording = recorded(1, 3, 4)
    [image] = pictures(recording[0]._repr_html_())
    weights = recording[0].weights().numpy()
    side = (image.width - 4) // 3
    pixels = np.asarray(image)
    shades = {}
    for head in range(3):
        for n in range(4):
            for m in range(4):
                y, x = (int((i + 0.5) * side / 4) for i in (n, m))
                colour = tuple(int(c) for c in pixels[y, x + head * (side + 2)])
                assert (colour == GREY) == (m > n)
                if m <= n:
                    shades[weights[head, n, m]] = sum(colour[:2])
    assert np.all(np.diff([shades[weight] for weight in sorted(shades)]) >= -3)  # brighter is more


@pytest.mark.parametrize(
    ("heads", "title"), [(None, "heads 0 to 3"), ([3, 1], "heads 3, 1"), ([2], "head 2")]
)
def test_pictures_name_their_heads(heads, title):
    model = Model(1)
    with heedful.record(model, heads=heads) as recording, torch.no_grad():
        model(torch.randn(1, 4, 5, 4))
    assert f'title="{title}"' in recording[0]._repr_html_()


def test_the_first_tokens_are_listed_and_escaped():
    recording = recorded(1, 1, 80)
    recording.tokens = [["<script>alert(1)</script>", "&", *map(str, range(78))]]
    html = recording._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert " and 20 tokens more" in parsed(html)


def test_of_a_long_map_some_rows_are_drawn():
    recording = recorded(1, 2, 3000)
    html = recording._repr_html_()
    assert "of a map with a side above 80, the picture has at most 80 queries;" in html
    [image] = pictures(html)
    assert image.height == 80
    grey = (np.asarray(image)[:, :75] == GREY).all(-1)
    assert grey[0].sum() > 70  # the first query attends only to itself
    assert grey[-1].sum() == 0


@pytest.mark.parametrize(("layers", "heads"), [(48, 64), (100, 64), (3, 5)])
def test_the_size_of_the_table_is_bounded(layers, heads):
    recording = recorded(layers, heads, 12)
    html = recording._repr_html_()
    assert len(html) < 1_000_000
    texts = " ".join(parsed(html))
    assert ("36 calls more" in texts) == (layers == 100)
    assert len(pictures(html)) == (layers if layers * heads <= 4096 else 64)


def test_pictures_that_take_long_are_omitted_with_a_note(monkeypatch):
    recording = recorded(3, 2, 100)
    monkeypatch.setattr(html_table, "SCORES", 2 * 80 * 100)
    html = recording._repr_html_()
    assert len(pictures(html)) == 1
    assert "2 calls without a picture, which would take long: recording[0].plot(heads=0)" in html


def test_a_refuted_call_has_no_picture():
    recording = recorded(2, 1, 4)
    recording[0].refutations[0] = 'a <row> is "wrong"'
    html = recording._repr_html_()
    assert "refuted" in parsed(html)
    assert "a &lt;row&gt; is &quot;wrong&quot;" in html
    assert len(pictures(html)) == 1


def test_a_strip_has_16_heads_per_line():
    _, width, height = strip([np.ma.masked_array(np.eye(3, 5))] * 20, 16)
    assert (width, height) == (16 * 15 + 15 * 2, 2 * 9 + 2)


def test_a_single_query_has_a_minimum_height():
    _, width, height = strip([np.ma.masked_array(np.eye(16)[:1])] * 3, 16)
    assert (width, height) == (3 * 16 + 2 * 2, 8)


def test_a_generation_has_one_line_per_layer():
    model = GPT(GPTConfig(vocabulary=9, context_length=16, width=8, layers=2, heads=2)).eval()
    cache = model.new_cache(3)
    with torch.inference_mode(), heedful.record(model) as recording:
        for ids in torch.randint(9, (3, 7)).split([4, 1, 1, 1], dim=1):
            model(ids, cache=cache)
    html = recording.sequences[1]._repr_html_()
    assert len(pictures(html)) == 2
    assert "2, 7 × 7" in parsed(html)
    assert "a generation of 4 passes, drawn as one" in html
    assert "text 1 of 3: .sequences has all" in html
