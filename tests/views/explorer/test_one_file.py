"""The page as one file: its size, its numbers beside the library's, and what no token can do."""

import base64
import hashlib
import math
import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from every_kind import EVIL, cross, long, of_gpt, padded, strange
from torch import nn

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.ops.masks import Causal, Dense, KeyRanges, Padding, Window
from heedful.views.explorer import one_file, summaries
from heedful.views.explorer.answers import Answers
from heedful.views.explorer.causes_in_file import causes_as_data
from heedful.views.explorer.contents import contents
from heedful.views.explorer.masks_in_file import mask_as_data
from heedful.views.explorer.texts import Texts
from heedful.views.explorer.wire import unpacked


class Fused(nn.Module):
    def forward(self, query, key, value):
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class Layers(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Fused() for _ in range(layers))

    def forward(self, inputs):
        for layer, given in zip(self.layers, inputs, strict=True):
            layer(*given)


def random_ones(heads, tokens, layers=1, width=16):
    """Attention with no pattern at all, which takes the most bytes."""
    generator = torch.Generator().manual_seed(3)
    shape = 3, 1, heads, tokens, width
    inputs = [tuple(torch.randn(shape, generator=generator)) for _ in range(layers)]
    with heedful.record(model := Layers(layers)) as recording:
        model(inputs)
    recording.tokens = [[f" word{n}" for n in range(tokens)]]
    return recording


def elements(page):
    """What stands in the elements that no browser runs, inflated, by their ids."""
    found = re.findall(r'<script type="application/octet-stream" id="([^"]+)">([^<]*)<', page)
    return {name: zlib.decompress(base64.b64decode(text)) for name, text in found}


def parts_of(data):
    """Parts behind their lengths, as (head, arrays) by their names."""
    found = {}
    while data:
        (length,) = struct.unpack_from("<I", data)
        head, arrays = unpacked(data[4 : 4 + length])
        found[head.pop("part")] = head, arrays
        data = data[4 + length :]
    return found


def joined(planes, kind):
    """Numbers of which the bytes of one significance stand together."""
    return np.moveaxis(planes, 0, -1).copy().view(kind)[..., 0]


def written(path, recordings, **options):
    """The parts of a file, and what was said of it."""
    told = one_file.write(path, Texts(recordings), "a title", **options)
    assert told.bytes == path.stat().st_size
    inside = elements(path.read_text("utf-8"))
    return parts_of(inside.pop("numbers")), inside, told


def test_144_heads_at_512_tokens_take_less_than_5_mb(tmp_path):
    recording = random_ones(12, 512, layers=12)
    parts, _, told = written(tmp_path / "a.html", {"a": recording})
    assert told.bytes <= 5_000_000
    assert "exactly the 8 largest weights of every row" in told.said
    assert all(len(parts[f"maps 0.0.{layer}"][1]["rows"]) == 512 for layer in range(12))


@pytest.mark.parametrize(("heads", "tokens"), [(3, 700), (40, 64), (1, 1500)])
def test_no_file_has_more_bytes_than_there_is_room_for(heads, tokens):
    recording = random_ones(heads, tokens)
    for room in (60_000, 200_000, 600_000):
        data, said = contents(Texts({"a": recording}), room, lambda share: None)
        assert len(data) <= room
        assert len(data) > 0.3 * room or "Every weight" in said


def test_what_there_is_no_room_for_is_refused():
    with pytest.raises(RunError, match="--layers"):
        contents(Texts({"a": random_ones(30, 40, layers=3)}), 700, lambda share: None)


def test_texts_of_long_tokens_count_too():
    recording = random_ones(2, 60)
    generator = np.random.default_rng(5)
    recording.tokens = [["".join(map(chr, generator.integers(0x4E00, 0x9000, 10_000)))
                         for _ in range(60)]]  # fmt: skip
    data, _ = contents(Texts({"a": recording}), 200_000, lambda share: None)
    assert len(data) <= 200_000
    parts = parts_of(zlib.decompress(data))
    names = parts[f"shared {parts['common 0.0.0'][0]['keys']}"][0]
    assert set(names["cut"].values()) == {10_000}
    assert names["tokens"][7] == recording.tokens[0][7][: len(names["tokens"][7])]


@pytest.mark.parametrize("cell", [1, 2, 8, 64])
def test_pooled_maps_and_largest_weights_by_definition(cell):
    [call] = random_ones(2, 75)
    weights, N = call.weights().double().numpy(), 75
    rows = torch.tensor([0, 1, 40, 74])
    found = summaries.summary(call, summaries.Plan(cell, cell > 1, rows))
    hidden = np.triu(np.ones((N, N), bool), 1)
    for h, r, c in np.ndindex(found.most.shape):
        part = np.s_[r * cell : (r + 1) * cell, c * cell : (c + 1) * cell]
        if hidden[part].all():
            assert math.isnan(found.most[h, r, c])
            continue
        assert float(found.most[h, r, c]) == pytest.approx(weights[h][part].max(), abs=1e-6)
        if cell > 1:
            assert float(found.mean[h, r, c]) == pytest.approx(weights[h][part].mean(), abs=1e-6)
    for h, n in np.ndindex(2, len(rows)):
        row = int(rows[n])
        best = np.argsort(-weights[h, row, : row + 1], kind="stable")[:8]
        known = found.keys[h, n] >= 0
        assert found.keys[h, n][known].tolist() == sorted(best.tolist())
        assert found.weights[h, n][known].numpy() == pytest.approx(
            weights[h, row][np.sort(best)], abs=1e-6
        )


def test_what_the_file_has_is_what_was_gathered(tmp_path, monkeypatch):
    monkeypatch.setattr(one_file, "LEAST", 800_000)
    monkeypatch.setattr(one_file, "FEW", 0)
    recording = random_ones(2, 1100)
    parts, _, told = written(tmp_path / "a.html", {"a": recording})
    head, arrays = parts["maps 0.0.0"]
    assert head["half"]
    assert head["cell"] > 1
    assert f"{head['cell']} × {head['cell']}" in told.said
    [call] = recording
    cell = head["cell"]
    for name, reduce in (("most", "max"), ("mean", "mean")):
        kept = joined(arrays[name], np.float16).astype(float) / summaries.FINER
        true = torch.stack([call.pooled((cell, cell), h, reduce=reduce) for h in (0, 1)]).numpy()
        seen = ~np.isnan(kept)
        assert seen.sum() > 0.5 * seen.size
        assert kept[seen] == pytest.approx(true[seen], rel=1.1e-3)
        if name == "most":  # a bound is one
            assert (kept[seen] >= true[seen] * (1 - 1e-6)).all()
    keys = joined(arrays["steps"], np.int32).cumsum(-1) - 1
    weights = joined(arrays["weights"], np.float32)
    top = call.top(8)
    for n in (3, 500, 1099):
        order = top.keys[1, n].argsort()
        assert keys[1, n].tolist() == top.keys[1, n][order].tolist()
        assert weights[1, n] == pytest.approx(top.weights[1, n][order].numpy(), rel=1e-5)


def test_a_small_weight_in_half_precision_is_no_zero():
    small = torch.tensor([1e-13, 3e-9, 0.0, 0.5, float("nan")])
    planes = summaries.planes(summaries._halved(small * summaries.FINER, up=False))
    found = joined(planes.numpy(), np.float16).astype(float) / summaries.FINER
    assert found[0] > 0
    assert found[1] == pytest.approx(3e-9, rel=1e-3)
    assert found[2] == 0
    assert np.isnan(found[4])


def test_scores_and_tokens_are_those_that_the_server_tells(tmp_path):
    recording = of_gpt()
    texts = Texts({"a": recording})
    parts, _, _ = written(tmp_path / "a.html", {"a": recording})
    head, arrays = parts["scores 0.0.1"]
    true, numbers = unpacked(Answers(texts).scores((0, 0, 1)))
    assert head["kinds"] == true["kinds"]
    for name, of in numbers.items():
        np.testing.assert_array_equal(arrays[name], of)
    names = parts[f"shared {parts['common 0.0.1'][0]['queries']}"][0]["tokens"]
    assert names == recording[1].query_tokens
    assert len([name for name in parts if name.startswith("shared")]) == 1  # one text, once


MASKS = [
    None,
    Causal(),
    Causal(1) & Window(4, 1),
    Window(3),
    KeyRanges(torch.tensor([0, 2, 5, 5, 1]), torch.tensor([3, 9, 5, 11, 4])),
    Padding(torch.tensor([True] * 7 + [False, True, True, False])) & Causal(),
    Dense(torch.rand(5, 11, generator=torch.Generator().manual_seed(1)) > 0.4),
    Dense(torch.rand(2, 5, 11, generator=torch.Generator().manual_seed(2)) > 0.4),
]  # fmt: skip


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_mask_by_its_numbers_and_bits(mask):
    query, key = torch.randn(2, 5, 4), torch.randn(2, 11, 4)
    call = next(iter(cross()[0:1]))
    causes = call.causes._replace(query=query, key=key, mask=mask, bias=None)
    call = replace(call, causes=causes, sums=None, value=None, chosen=None)
    parts, arrays = mask_as_data(call)
    table = torch.ones(2, 5, 11, dtype=torch.bool) if mask is None else mask.crop((2, 5, 11))
    table = table.expand(2, 5, 11)
    for h, n, m in np.ndindex(2, 5, 11):
        assert by_numbers(parts, arrays, h, n, m) == bool(table[h, n, m]), (h, n, m)


def by_numbers(parts, arrays, h, n, m):
    """Whether all parts allow a pair."""
    for part in parts:
        if "causal" in part and m > n + part["causal"]:
            return False
        if "window" in part and abs(n + part["offset"] - m) >= part["window"]:
            return False
        if "runs" in part:
            first, end = arrays[part["runs"]]
            if not first[n] <= m < end[n]:
                return False
        if "bits" in part:
            bits = arrays[part["bits"]]
            byte = bits[h if len(bits) > 1 else 0, n if bits.shape[1] > 1 else 0, m // 8]
            if not int(byte) >> (m % 8) & 1:
                return False
    return True


@pytest.mark.parametrize("large", [1.0, 3e5])
def test_queries_in_half_precision_and_how_far_their_weights_are_off(large):
    [call] = random_ones(2, 60)
    of = call.causes
    of = of._replace(query=of.query * large, key=of.key / large)
    call = replace(call, causes=of, sums=None)
    head, arrays, _, off = causes_as_data(call, half=True)
    query, key = (
        joined(arrays[name].numpy(), np.float16).astype(float) * 2.0 ** head[f"{name} up"]
        for name in ("query", "key")
    )
    scores = query @ key.swapaxes(1, 2) * head["scale"]
    scores[:, np.triu(np.ones((60, 60), bool), 1)] = -np.inf
    weights = np.exp(scores - arrays["sums"].numpy()[..., None])
    true = call.weights().numpy()
    rows = np.linspace(0, 59, 16).astype(int)
    assert off == pytest.approx(np.abs(weights - true)[:, rows].max(), rel=0.02)
    assert 0 < off < 2e-3


def test_an_exact_file_says_how_far_it_is_off_and_a_short_one_has_all(tmp_path, monkeypatch):
    recording = random_ones(2, 300)
    _, inside, told = written(tmp_path / "a.html", {"a": recording}, exact=True)
    assert "causes-0.0.0" in inside
    assert "Every weight" in told.said  # few numbers are there as they were
    assert not unpacked(inside["causes-0.0.0"])[0]["half"]
    monkeypatch.setattr(one_file, "FEW", 0)
    parts, inside, told = written(tmp_path / "b.html", {"a": recording}, exact=True)
    file = parts["about"][0]["file"]
    assert file["half"]
    assert 0 < file["difference"] < 0.01
    within = float(re.search(r"within (\S+) of", told.said)[1])
    assert file["difference"] <= within <= 2 * file["difference"]
    assert told.said == file["said"]
    assert unpacked(inside["causes-0.0.0"])[0]["half"]
    _, inside, _ = written(tmp_path / "c.html", {"a": recording})
    assert "causes-0.0.0" not in inside


def test_a_bias_that_is_of_distances_is_kept_as_such():
    [call] = random_ones(2, 40)
    distance = torch.arange(40)[None] - torch.arange(40)[:, None]
    slopes = torch.tensor([0.5, 0.25])[:, None, None]
    for bias, kind in ((slopes * distance, "distances"), (torch.randn(2, 40, 40), "halves"),
                       (torch.randn(2, 1, 40), "table")):  # fmt: skip
        other = replace(call, causes=call.causes._replace(bias=bias), sums=None)
        head, _, shared, off = causes_as_data(other, half=True)
        assert head["bias"] == kind
        assert off < 5e-3
        if kind == "distances":
            assert shared["bias"][1, 12 - 30 + 39] == bias[1, 30, 12]


def test_too_large_an_exact_file_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(one_file, "LARGEST", 100_000)
    with pytest.raises(RunError, match=r"some 0 MB|--layers"):
        one_file.write(tmp_path / "a.html", Texts({"a": random_ones(4, 300)}), "a", exact=True)
    assert not list(tmp_path.iterdir())


def test_interrupted_no_half_file_is_left(tmp_path):
    path = tmp_path / "a.html"
    path.write_text("before")

    def interrupted(share):
        if share > 0.2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one_file.write(path, Texts({"a": random_ones(2, 200)}), "a", interrupted)
    assert [one.name for one in tmp_path.iterdir()] == ["a.html"]
    assert path.read_text() == "before"


def test_no_token_and_no_name_is_anything_but_text(tmp_path):
    path = tmp_path / "a.html"
    recording = strange()
    name = f"{EVIL}<!--\u2028\udcff"
    one_file.write(path, Texts({name: recording}), f"{name} · heedful")
    page = path.read_text("utf-8")
    assert "<img" not in page
    assert "<!--" not in page
    scripts = re.findall(r"<script([^>]*)>", page)
    inert = [one for one in scripts if 'type="application/octet-stream"' in one]
    assert len(scripts) == len(inert) + 1 == page.count("</script>")
    parts = parts_of(elements(page)["numbers"])
    assert parts["about"][0]["recordings"][0]["name"] == name
    assert EVIL in parts["shared 0"][0]["tokens"]


def test_the_policy_allows_the_one_script_and_no_network(tmp_path):
    path = tmp_path / "a.html"
    one_file.write(path, Texts({"a": of_gpt()}), "a")
    page = path.read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    [digest] = rules["script-src"].split()
    script = re.search(r'<script type="module">(.*?)</script>', page, re.S)[1]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert digest == f"'sha256-{hashed}'"
    assert "http:" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.S)


def test_calls_of_every_kind_are_written(tmp_path):
    recordings = {"padded": padded(), "cross": cross(), "long": long(300)}
    parts, _, _ = written(tmp_path / "a.html", recordings)
    texts = Texts(recordings)
    for r, recording in enumerate(texts.about()):
        for t, text in enumerate(recording["texts"]):
            for c in range(len(text["calls"])):
                assert "wrong" not in parts[f"maps {r}.{t}.{c}"][0]


def test_some_layers_and_heads_alone():
    recording = of_gpt(7, heads=6, kv_heads=2, positions="rotary", values=True)
    texts = Texts({"a": recording}, layers=[1], heads=[4, 1])
    [about] = texts.about()[0]["texts"]
    assert [call["layer"] for call in about["calls"]] == [1]
    call = texts.call(0, 0, 0)
    assert call.heads == [1, 4]
    for head in (1, 4):
        torch.testing.assert_close(call.weights(head), recording[1].weights(head))
        torch.testing.assert_close(call.value_norm(head), recording[1].value_norm(head))
    with pytest.raises(ArgumentError, match="layers 0 to 1"):
        Texts({"a": recording}, layers=[2])
    with pytest.raises(ArgumentError, match="head 6"):
        Texts({"a": recording}, heads=[0, 6])
