"""The standalone page: its size, its numbers, and its content security policy."""

import base64
import hashlib
import json
import math
import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from small_recordings import EVIL, SENTENCE, Causal, cross, of_gpt, strange

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.ops import masks
from heedful.ops.masks import Dense, KeyRanges, Padding, Window
from heedful.views.explorer import one_file
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.handlers import Handlers
from heedful.views.explorer.overview import Thumbnails
from heedful.views.explorer.stored_inputs import StoredInputs, mask_as_data
from heedful.views.explorer.wire import packed, unpacked


def random_attention(heads, tokens, width=16):
    """Record random attention, which takes the most bytes."""
    generator = torch.Generator().manual_seed(3)
    with heedful.record(model := Causal()) as recording:
        model(*torch.randn(3, 1, heads, tokens, width, generator=generator))
    recording.tokens = [[f" word{n}" for n in range(tokens)]]
    return recording


def elements(page):
    """Return the inflated contents of the inert script elements, by id."""
    matches = re.findall(r'<script type="application/octet-stream" id="([^"]+)">([^<]*)<', page)
    return {name: zlib.decompress(base64.b64decode(text)) for name, text in matches}


def parts_of(data):
    """Return the parts of the data as (head, arrays), by name."""
    parts = {}
    while data:
        (length,) = struct.unpack_from("<I", data)
        head, arrays = unpacked(data[4 : 4 + length])
        parts[head.pop("part")] = head, arrays
        data = data[4 + length :]
    return parts


def numbers_of(head, arrays):
    """Return the numbers of a part as the page decodes them."""
    planes = arrays["numbers"]
    codes = np.moveaxis(planes, 0, -1).copy()
    if "low" not in arrays:
        return codes.view(np.float32)[..., 0]
    codes = codes.view(np.uint16)[..., 0].astype(float)
    decoded = arrays["low"] + (codes - 1) * arrays["step"]
    return np.where(codes == 0, -np.inf, decoded)


def written(path, recordings, **options):
    """Write a file; return its parts, its other elements, and its summary."""
    summary = one_file.write(path, Catalogue(recordings), "a title", **options)
    assert summary[0] == path.stat().st_size
    inside = elements(path.read_text("utf-8"))
    return parts_of(inside.pop("numbers")), inside, summary


def stored(inside):
    """Return the call and index of each head with a stored query and key."""
    return [name.removeprefix("query-") for name in inside if name.startswith("query-")]


def test_a_file_stays_below_its_limit_and_stores_the_strongest_heads(tmp_path, monkeypatch):
    monkeypatch.setattr(one_file, "_bits", lambda *arguments: 16)
    recording = random_attention(6, 400)
    scores = [head.scores.get(head.kind) or 0.0 for head in recording.heads()]
    full = written(tmp_path / "a.html", {"a": recording})[2][0] / 1e6
    assert len(stored(written(tmp_path / "b.html", {"a": recording}, limit=full + 0.01)[1])) == 6
    parts, inside, summary = written(tmp_path / "c.html", {"a": recording}, limit=full - 0.1)
    assert summary[0] <= (full - 0.1) * 1e6
    heads = [int(name.rpartition("-")[2]) for name in stored(inside)]
    assert 0 < len(heads) < 6
    assert f"computes the weights of {len(heads)} of 6 heads" in summary[1]
    assert min(scores[h] for h in heads) >= max(scores[h] for h in range(6) if h not in heads)
    small, true = parts["call 0.0.0"][1]["small"], recording[0].heatmap(32, reduce="max").numpy()
    assert small.shape == true.shape
    visible = ~np.isnan(small)
    assert (small[visible] >= true[visible] - 1e-6).all()  # half precision, rounded up
    assert small[visible] == pytest.approx(true[visible], rel=1e-3)


def test_a_limit_below_the_thumbnails_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"--layers.*--limit"):
        written(tmp_path / "a.html", {"a": random_attention(2, 40)}, limit=0.1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("side", [2, 9, 32])
@pytest.mark.parametrize("window", [None, 5])
def test_thumbnails_by_definition(side, window):
    """From two runs of rows; the second starts within a cell."""
    call, size = of_gpt(6, SENTENCE * 3, window=window)[1], 3 * len(SENTENCE)
    thumbnails = Thumbnails(call, side)
    for run in (range(29), range(29, size)):
        call.gather(thumbnails, within=run)
    maps, masked = thumbnails.result(), thumbnails.fully_masked(call)
    weights, cell = call.weights().numpy(), -(-size // side)
    for h, r, c in np.ndindex(maps.shape):
        part = np.s_[r * cell : (r + 1) * cell, c * cell : (c + 1) * cell]
        assert float(maps[h, r, c]) == pytest.approx(weights[h][part].max(), abs=1e-6)
        assert bool(masked[0, r, c]) == (not (weights[h][part] > 0).any())


def test_scores_and_tokens_equal_those_of_the_server(tmp_path):
    recording = of_gpt()
    catalogue = Catalogue({"a": recording})
    parts, _, _ = written(tmp_path / "a.html", {"a": recording})
    head, arrays = parts["call 0.0.1"]
    true, numbers = unpacked(Handlers(catalogue).handle("scores", {"call": "0.0.1"}))
    assert head["kinds"] == true["kinds"]
    for name, expected in numbers.items():
        np.testing.assert_array_equal(arrays[name], expected)
    names = parts[f"shared {head['queries']}"][0]["tokens"]
    assert names == recording[1].query_tokens
    assert (
        len([name for name in parts if name.startswith("shared")]) == 1
    )  # one text is stored once


MASKS = [
    None,
    masks.Causal(),
    masks.Causal(1) & Window(4, 1),
    Window(3),
    KeyRanges(torch.tensor([0, 2, 5, 5, 1]), torch.tensor([3, 9, 5, 11, 4])),
    Padding(torch.tensor([True] * 7 + [False, True, True, False])) & masks.Causal(),
    Dense(torch.rand(5, 11, generator=torch.Generator().manual_seed(1)) > 0.4),
    Dense(torch.rand(2, 5, 11, generator=torch.Generator().manual_seed(2)) > 0.4),
]  # fmt: skip


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_mask_by_its_conditions(mask):
    query, key = torch.randn(2, 5, 4), torch.randn(2, 11, 4)
    call = next(iter(cross()[0:1]))
    inputs = call.causes._replace(query=query, key=key, mask=mask, bias=None)
    call = replace(call, causes=inputs, sums=None, value=None, chosen=None)
    parts, arrays = mask_as_data(call)
    table = torch.ones(2, 5, 11, dtype=torch.bool) if mask is None else mask.crop((2, 5, 11))
    table = table.expand(2, 5, 11)
    for h, n, m in np.ndindex(2, 5, 11):
        assert is_allowed(parts, arrays, h, n, m) == bool(table[h, n, m]), (h, n, m)


def is_allowed(parts, arrays, h, n, m):
    """Return whether all conditions allow a pair."""
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
@pytest.mark.parametrize(("bits", "within"), [(32, 1e-5), (16, 1e-4)])
def test_weights_from_stored_inputs_and_their_deviation(large, bits, within):
    [call] = random_attention(2, 60)
    query, key = call.causes.query * large, call.causes.key / large
    call = replace(call, causes=call.causes._replace(query=query, key=key), sums=None)
    inputs = StoredInputs("0.0.0", call, bits)
    errors = []
    for h in (0, 1):
        parts = {name: unpacked(data) for name, data in inputs.parts(h).items()}
        query, key = (numbers_of(*parts[f"{name}-0.0.0-{h}"]) for name in ("query", "key"))
        scores = query.astype(float) @ key.T.astype(float) * inputs.about()["scale"]
        scores[np.triu(np.ones((60, 60), bool), 1)] = -np.inf
        weights = np.exp(scores - parts[f"query-0.0.0-{h}"][1]["sums"][:, None])
        np.testing.assert_allclose(weights.sum(1), 1, atol=2e-6)
        errors.append(np.abs(weights - call.weights(h).numpy()))
    rows = np.linspace(0, 59, 16).astype(int)
    assert inputs.difference == pytest.approx(max(error[rows].max() for error in errors), abs=2e-6)
    assert max(error.max() for error in errors) < within


def test_bits_follow_the_limit_and_the_deviation_is_reported(tmp_path):
    recording = random_attention(2, 300, width=64)
    for limit, bits in ((2, 32), (0.3, 16)):
        assert one_file._bits(Catalogue({"a": recording}), int(limit * 1e6)) == bits
    parts, _, summary = written(tmp_path / "a.html", {"a": recording}, limit=0.6)
    within = float(re.search(r"by at most (\S+)\.", summary[1])[1])
    deviation = parts["about"][0]["file"]["difference"]
    assert 0 < deviation <= within <= 2 * deviation


def test_a_bias_by_distance_is_stored_by_distance():
    [call] = random_attention(2, 40)
    distance = torch.arange(40)[None] - torch.arange(40)[:, None]
    slopes = torch.tensor([0.5, 0.25])[:, None, None]
    for bias in (slopes * distance, torch.randn(2, 40, 40), torch.randn(2, 1, 40)):
        biased = replace(call, causes=call.causes._replace(bias=bias), sums=None)
        inputs = StoredInputs("0.0.0", biased, 16)
        names = inputs.about()["bias"]
        assert len(names) == len(bias)
        head, arrays = unpacked(inputs.parts(1)[names[-1]])
        if bias.shape[1] == 40 and bias[0, 0, 0] == bias[0, 1, 1]:
            assert arrays["distances"][12 - 30 + 39] == bias[1, 30, 12]
        else:
            numbers = numbers_of(head, arrays).reshape(arrays["shape"])
            assert numbers == pytest.approx(bias[-1].numpy(), abs=1e-4)
        assert inputs.difference < 1e-3


def test_maps_without_query_and_key_are_stored_as_a_bias(tmp_path):
    true = random_attention(3, 50)[0].weights()
    recording = heedful.recording.from_attentions([true[None]])
    assert len(stored(written(tmp_path / "a.html", {"a": recording})[1])) == 3
    inputs = StoredInputs("0.0.0", recording[0], 16)
    for h in range(3):
        parts = {name: unpacked(data) for name, data in inputs.parts(h).items()}
        head, arrays = parts[inputs.about()["bias"][h]]
        scores = numbers_of(head, arrays).reshape(50, 50)
        weights = np.exp(scores - parts[f"query-0.0.0-{h}"][1]["sums"][:, None])
        np.testing.assert_allclose(weights, true[h].numpy(), rtol=1e-3)


def test_heads_that_share_a_key_share_its_part(tmp_path):
    recording = of_gpt(7, heads=6, kv_heads=2, positions="rotary", values=True)
    _, inside, _ = written(tmp_path / "a.html", {"a": recording})
    keys = sorted(name for name in inside if name.startswith("key-0.0.1"))
    assert keys == ["key-0.0.1-0", "key-0.0.1-1"]
    assert len([name for name in stored(inside) if name.startswith("0.0.1")]) == 6
    norms = unpacked(inside["query-0.0.1-5"])[1]["values"]
    assert norms == pytest.approx(recording[1].value[1].norm(dim=-1).numpy(), rel=1e-5)


def test_names_are_text_and_the_policy_allows_one_script_and_no_network(tmp_path):
    path = tmp_path / "a.html"
    recording = strange()
    name = f"{EVIL}<!--\u2028\udcff"
    one_file.write(path, Catalogue({name: recording}), f"{name} · heedful")
    page = path.read_text("utf-8")
    assert not {"<img", "<!--"} & set(re.findall("<img|<!--", page))
    scripts = re.findall(r"<script([^>]*)>", page)
    inert = [script for script in scripts if 'type="application/octet-stream"' in script]
    assert len(scripts) == len(inert) + 1 == page.count("</script>")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    script = re.search(r'<script type="module">(.*?)</script>', page, re.S)[1]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{hashed}'"
    assert "http:" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.S)
    parts = parts_of(elements(page)["numbers"])
    assert parts["about"][0]["recordings"][0]["name"] == name
    assert EVIL in parts["shared 0"][0]["tokens"]


def test_a_selection_of_layers_and_heads():
    recording = of_gpt(7, heads=6, kv_heads=2, positions="rotary", values=True)
    catalogue = Catalogue({"a": recording}, layers=[1], heads=[4, 1])
    [about] = catalogue.about()[0]["texts"]
    assert [call["layer"] for call in about["calls"]] == [1]
    call = catalogue.call(0, 0, 0)
    assert call.heads == [1, 4]
    for head in (1, 4):
        torch.testing.assert_close(call.weights(head), recording[1].weights(head))
        torch.testing.assert_close(call.value_norm(head), recording[1].value_norm(head))
    with pytest.raises(ArgumentError, match="layers 0 to 1"):
        Catalogue({"a": recording}, layers=[2])
    with pytest.raises(ArgumentError, match="head 6"):
        Catalogue({"a": recording}, heads=[0, 6])


TYPES = ["float16", "float32", "int32", "uint8"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=60)
@given(
    head=st.dictionaries(st.text(max_size=9).filter(lambda name: name != "arrays"), VALUES),
    parts=st.lists(
        st.sampled_from(TYPES).flatmap(
            lambda kind: arrays.arrays(
                kind, arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5)
            )
        ),
        max_size=4,
    ),
)
def test_unpacked_returns_what_was_packed(head, parts):
    named = {f"array {i}": torch.from_numpy(np.array(part)) for i, part in enumerate(parts)}
    data = packed(head, **named)
    (length,) = struct.unpack_from("<I", data)
    assert (4 + length) % 8 == 0
    header, received = unpacked(data)
    assert header == json.loads(json.dumps(head))
    assert list(received) == list(named)
    for part, array in zip(parts, received.values(), strict=True):
        assert (array.dtype, array.shape) == (part.dtype, part.shape)
        np.testing.assert_array_equal(array, part)


def test_wide_types_are_narrowed_and_nan_and_infinities_replaced():
    head = {"log": -math.inf, "most": [math.inf, {"mean": math.nan}]}
    header, parts = unpacked(packed(head, a=torch.ones(2, dtype=torch.float64), b=torch.arange(3)))
    assert header == {"log": "-inf", "most": ["inf", {"mean": None}]}
    assert (parts["a"].dtype, parts["b"].dtype) == (np.float32, np.int32)
