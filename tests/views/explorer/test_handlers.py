"""The handlers of requests: numbers equal the library's, and wrong parameters are refused."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import small_recordings
import torch
import transformers
from process_defaults import default_elsewhere, default_type

from heedful.errors import ArgumentError, RunError
from heedful.recorder import record
from heedful.recording.certificate import Check
from heedful.recording.row_sums import RowSums
from heedful.views.explorer import handlers as handlers_module
from heedful.views.explorer import overview as overview_module
from heedful.views.explorer import region_jobs, tiles
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.file_contents import FileContents
from heedful.views.explorer.handlers import Handlers
from heedful.views.explorer.wire import unpacked

KINDS = ["causal", "windowed", "grouped", "padded", "cross", "generated", "sinks", "with values"]


@pytest.fixture(scope="module")
def recordings():
    return {kind: small_recordings.KINDS[kind]() for kind in KINDS} | {
        "long": small_recordings.long(600)
    }


def requests_to(recording, **options):
    """Return a function that requests numbers of a recording and unpacks the response."""
    handlers = Handlers(Catalogue({"one": recording}, **options))

    def request(endpoint, call="0.0.0", **parameters):
        strings = {name: str(value) for name, value in parameters.items()}
        return unpacked(handlers.handle(endpoint, {"call": call, **strings}))

    request.handlers = handlers
    return request


def last_of(recording, kind):
    """Return the last call and its id; for a generation, of the stitched text."""
    calls = recording.stitched() if kind == "generated" else list(recording)
    return calls[-1], f"0.0.{len(calls) - 1}"


@pytest.mark.parametrize("kind", KINDS)
def test_rows_columns_and_regions_equal_the_weights(recordings, kind):
    request, (call, call_id) = requests_to(recordings[kind]), last_of(recordings[kind], kind)
    H, N, M = call.shape
    weights = call.weights()
    for heads in ([0], [H - 1], list(range(H))):
        mean = weights[heads].mean(0)
        numbers = ",".join(map(str, heads))
        head, arrays = request("row", call_id, heads=numbers, at=N - 1)
        assert head["word"] == "exact"
        np.testing.assert_allclose(arrays["weights"], mean[N - 1], atol=2e-6)
        rows = torch.stack([call.weights(call.heads[i], [N - 1])[0] for i in heads])
        np.testing.assert_array_equal(arrays["weights"], rows.mean(0))
        head, arrays = request("column", call_id, heads=numbers, at=1)
        assert head["word"] == "exact"
        np.testing.assert_allclose(arrays["weights"], mean[:, 1], atol=2e-6)
    region = {"queries": f"1-{N}", "keys": f"0-{M - 1}"}
    head, arrays = request("part", call_id, head=H - 1, **region)
    np.testing.assert_array_equal(arrays["weights"], call.weights(H - 1, slice(1, N), slice(M - 1)))
    mask, shape = call.causes.mask, call.shape
    visible = torch.ones(shape).bool() if mask is None else mask.crop(shape).expand(shape)
    np.testing.assert_array_equal(arrays["seen"], visible[H - 1, 1:N, : M - 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_equals_the_weight_with_its_rivals(recordings, kind):
    request, (call, call_id) = requests_to(recordings[kind]), last_of(recordings[kind], kind)
    H, N, M = call.shape
    for query, key in ((N - 1, 0), (1, M - 1), (0, 0)):
        head, arrays = request("cell", call_id, head=H - 1, query=query, key=key)
        row = call.weights(H - 1, [query])[0]
        assert head["weight"] == pytest.approx(float(row[key]), abs=1e-7)
        assert head["rank"] == 1 + int((row > row[key]).sum()) or head["hidden"]
        best = row.sort(descending=True).values[: len(arrays["weights"])]
        np.testing.assert_allclose(arrays["weights"], best, atol=1e-6)
        np.testing.assert_allclose(row[arrays["rivals"].tolist()], best, atol=1e-7)
        assert head["seen"] == int((call.one_weight(H - 1, query, key).scores > -math.inf).sum())
    assert (head["proof"], head["layout"]) == (call.proof, call.layout)
    assert (head["value"] is not None) == (kind == "with values")
    if kind == "with values":
        moved = float(call.value_norm(H - 1, [query], [key])[0, 0])
        assert head["value"] * head["weight"] == pytest.approx(moved, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_equal_those_of_the_recording(recordings, kind):
    if kind == "generated":
        pytest.skip("recording.heads() lists the heads of each pass")
    request, heads = requests_to(recordings[kind]), recordings[kind].heads()
    for call in range(len(list(recordings[kind]))):
        head, arrays = request("scores", f"0.0.{call}")
        expected = [head for head in heads if head.call == call]
        assert (head["word"], head["kinds"]) == ("exact", [head.kind for head in expected])
        for name in expected[0].scores:
            for prefix, field in (("", "scores"), ("chance ", "chance"), ("queries ", "queries")):
                numbers = [getattr(head, field)[name] for head in expected]
                numbers = [math.nan if number is None else number for number in numbers]
                np.testing.assert_array_equal(arrays[prefix + name], np.float32(numbers))


def test_heads_of_a_long_call_are_sampled_and_then_exact(recordings, monkeypatch):
    [call], heads = recordings["long"], recordings["long"].heads()
    monkeypatch.setattr(overview_module, "FEW", 0)
    monkeypatch.setattr(overview_module, "BAND", 600 * 5)
    request = requests_to(recordings["long"])
    head, arrays = request("scores")
    assert (head["word"], head["done"], head["kinds"]) == ("sampled", 0, ["", ""])
    assert np.isnan(arrays["sink"]).all()
    head, maps = request("small")
    exact = call.heatmap(32, reduce="max").numpy()
    assert (head["word"], maps["maps"].shape) == ("sampled", exact.shape)
    assert (maps["maps"] <= exact + 4e-6).all()
    work = request.handlers.background.work
    remaining = iter([True] * 17)
    work(lambda: next(remaining, False))  # eight runs of each of two heads
    head, arrays = request("scores")
    assert head["word"] == "sampled"
    assert head["kinds"] != ["", ""]
    np.testing.assert_allclose(arrays["broad"], [head.broad for head in heads], atol=0.1)
    assert 0 < arrays["queries broad"][0] <= 8 * 16
    while work():
        pass
    head, arrays = request("scores")
    assert (head["word"], head["kinds"]) == ("exact", [head.kind for head in heads])
    for name, number in heads[1].scores.items():
        assert arrays[name][1] == pytest.approx(number, abs=1e-6, nan_ok=True) or number is None
    head, maps = request("small")
    assert head["word"] == "exact"
    np.testing.assert_allclose(maps["maps"], exact, atol=1e-5)


def test_a_tile_is_sampled_until_its_pyramid_is_built(recordings, monkeypatch):
    monkeypatch.setattr(tiles, "CELLS", 100)
    monkeypatch.setattr(tiles, "SIDE", 16)
    [call] = recordings["long"]
    request = requests_to(recordings["long"])
    head, arrays = request("tile", place="1,5,0,0", reduce="max")
    assert (head["word"], head["done"]) == ("sampled", 0)
    while request.handlers.background.work():
        pass
    head, exact = request("tile", place="1,5,0,0", reduce="max")
    assert head["word"] == "exact"
    assert (np.isnan(arrays["tile"]) >= np.isnan(exact["tile"])).all()
    cells = call.weights(1)[:512, :512].unflatten(1, (-1, 32)).unflatten(0, (-1, 32))
    expected = torch.where(torch.ones(16, 16).tril() > 0, cells.amax((1, 3)), torch.nan)
    np.testing.assert_allclose(exact["tile"], expected, atol=4e-6)


@pytest.mark.parametrize("endpoint", ["column", "tile"])
def test_weights_are_sampled_until_the_row_sums_are_computed(recordings, monkeypatch, endpoint):
    monkeypatch.setattr(handlers_module, "WHOLE_ROWS", 100)
    monkeypatch.setattr(region_jobs, "BAND", 600 * 40)
    call, request = recordings["long"][0], requests_to(recordings["long"])
    weights = call.weights(1)
    request.handlers.catalogue.call(0, 0, 0).sums = RowSums(
        torch.full((2, 600), torch.nan), torch.arange(600)
    )
    parameters = {"column": {"heads": 1, "at": 7}, "tile": {"place": "1,0,1,1"}}[endpoint]
    head, arrays = request(endpoint, **parameters)
    assert (head["word"], head["done"]) == ("sampled", 0)
    if endpoint == "column":
        computed = ~np.isnan(arrays["weights"])
        assert 0 < computed.sum() < 600
        np.testing.assert_allclose(arrays["weights"][computed], weights[computed, 7], atol=1e-6)
    while request.handlers.background.work():
        pass
    head, arrays = request(endpoint, **parameters)
    assert head == {"word": "exact"}
    if endpoint == "column":
        np.testing.assert_allclose(arrays["weights"], weights[:, 7], atol=2e-6)


def test_the_largest_weights_of_a_region(recordings, monkeypatch):
    request, [call] = requests_to(recordings["long"]), recordings["long"]
    region = {"head": 0, "queries": "100-500", "keys": "50-300", "count": 9}
    part = call.weights(0)[100:500, 50:300]
    best = part.flatten().sort(descending=True).values[:9]

    def compare(cells):
        np.testing.assert_allclose([cell[0] for cell in cells], best, atol=2e-6)
        for weight, query, key in cells:
            assert weight == pytest.approx(float(part[query - 100, key - 50]), abs=2e-6)

    head, _ = request("strongest", **region)
    assert head["word"] == "exact"
    compare(head["cells"])
    monkeypatch.setattr(region_jobs, "SAMPLED", 6000)
    monkeypatch.setattr(region_jobs, "BAND", 5000)
    request = requests_to(recordings["long"])
    head, _ = request("strongest", **region)
    assert (head["word"], head["done"]) == ("sampled", 0)
    assert head["cells"][0][0] <= best[0] + 1e-6
    while request.handlers.background.work():
        pass
    head, _ = request("strongest", **region)
    assert head["word"] == "exact"
    compare(head["cells"])
    head, _ = request("strongest", head=0, queries="0-2", keys="0-600", count=9)
    assert [cell[1:] for cell in head["cells"]].count([0, 0]) == 1
    assert len(head["cells"]) == 3  # the unmasked pairs


def test_tokens_are_cut_and_found_in_any_case():
    request = requests_to(small_recordings.strange())
    long = small_recordings.STRANGE.index("long" * 2500)
    head, _ = request("tokens", axis="keys", start=0, stop=99)
    assert head["tokens"][0] == small_recordings.EVIL
    assert head["tokens"][long] == ("long" * 2500)[:200]
    assert head["cut"] == {str(long): 10_000}
    head, arrays = request("find", axis="keys", text="LONG")
    assert (head["count"], arrays["places"].tolist()) == (1, [long])
    assert request("find", axis="queries", text="nowhere")[0]["count"] == 0
    recording = small_recordings.long(5)
    request = requests_to(recording)
    assert request("tokens", axis="keys", start=0, stop=9)[0]["tokens"] is None
    recording.tokens = [["fit", " it", "city", "It", "no"]]
    _, arrays = requests_to(recording)("find", axis="keys", text="it")
    assert arrays["places"].tolist() == [1, 3, 0, 2]  # equal tokens come first


def test_a_refuted_call_is_refused_and_other_calls_are_not():
    request = requests_to(small_recordings.of_gpt())
    call = request.handlers.catalogue.call(0, 0, 1)
    call.check = Check(9.0, 1.0, 4, where="head 0")
    assert call.proof == "refuted"
    refused = REQUESTS.keys() - {"scores"} | {"tile", "part", "strongest", "segments"}
    parameters = {**REGION, **CELL, "heads": 0, "at": 0, "count": 1, "place": "0,0,0,0"}
    for endpoint in refused:
        with pytest.raises(RunError, match="not recorded correctly"):
            request(endpoint, "0.0.1", **parameters)
    head, arrays = request("scores", "0.0.1")
    assert head["kinds"] == ["-"] * 3
    assert np.isnan(arrays["sink"]).all()
    assert request("row", heads=0, at=0)[0]["word"] == "exact"


def expected(call, keys, queries):
    """Return shares and chances from the library's table, (H, A, B), and queries, (H, A)."""
    table = call.segments(keys, queries=queries)
    from_ = list(dict.fromkeys(row.from_ for row in table))
    to = [name for name in dict.fromkeys(row.to for row in table) if name != "learned sink"]
    rows = {(row.head, row.from_, row.to): row for row in table}
    parts = [[[rows[head, a, b] for b in to] for a in from_] for head in call.heads]

    def numbers(name):
        as_rows = [[[getattr(row, name) for row in line] for line in head] for head in parts]
        return np.array(as_rows, dtype=float)

    return {"share": numbers("share"), "chance": numbers("chance"),
            "queries": numbers("queries")[..., 0]}  # fmt: skip


@pytest.mark.parametrize("in_steps", [False, True], ids=["at once", "in steps"])
@pytest.mark.parametrize("kind", KINDS)
def test_shares_equal_those_of_the_library(recordings, kind, in_steps, monkeypatch):
    if in_steps:
        monkeypatch.setattr(region_jobs, "FEW", 0)
        monkeypatch.setattr(region_jobs, "BAND", 20)
    request = requests_to(recordings[kind])
    calls = request.handlers.catalogue._source(0).text(0, None).calls
    call, call_id = calls[-1], f"0.0.{len(calls) - 1}"
    _, N, M = call.shape
    keys = {"first": slice(0, 2), "odd": [2, M - 1], "middle": [1, 3]}
    parameters = {"keys": f"0-2;2-3,{M - 1}-{M};1-2,3-4"}
    queries = None
    if call.is_cross:
        queries, parameters["queries"] = {"late": slice(1, N)}, f"1-{N}"
    about, arrays = request("segments", call_id, **parameters)
    if in_steps:
        assert about["word"] != "exact"
        assert not arrays
        assert about["done"] == 0
        while request.handlers.background.work(iter([True, False]).__next__):
            about, arrays = request("segments", call_id, **parameters)
            assert about["word"] == "exact" or 0 < about["done"] < 1
    assert about["word"] == "exact"
    assert about["sinks"] == (kind == "sinks")
    true = expected(call, keys, queries)
    for name, numbers in true.items():
        np.testing.assert_allclose(arrays[name], numbers, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(arrays["keys"][:3], [2, 2, 2])


def test_marked_segments_and_the_texts_of_a_call(recordings):
    about = requests_to(recordings["cross"], segments={"a": [0, 1, 3]}).handlers.catalogue.about()
    [text] = about[0]["texts"]
    assert text["crosses"]
    assert text["marks"] == {"source": [{"name": "a", "runs": [[0, 2], [3, 4]]}], "target": []}
    reads = {call["kind"]: call["reads"] for call in text["calls"]}
    assert reads["cross"] == ["target", "source"]
    assert reads["causal"] == ["target", "target"]
    with pytest.raises(ArgumentError, match="token"):
        Catalogue({"one": recordings["causal"]}, segments={"a": [9999]})


REMOVED = ["", "0", "0.1.2", "0.x", "0.1.2.3.4", "9.0", "0.9", "0.0.99.0", "0.0.0.99", "0.1,"]


def test_without_a_head_of_a_model_that_is_recorded_without_its_output_layer():
    config = transformers.GPTNeoXConfig(
        vocab_size=9, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=20, max_position_embeddings=16,
    )  # fmt: skip
    model = small_recordings.sharp(transformers.GPTNeoXForCausalLM(config), 1)
    ids = torch.arange(11)[None] ** 2 % 9
    with torch.no_grad(), record(model.base_model) as recording:
        model.base_model(ids)
    request = requests_to(recording)
    request.handlers.models = {"model": SimpleNamespace(writer=model, pieces=lambda ids: ids)}
    _, arrays = request("without", removed="1.1", at=5)
    with torch.no_grad():
        model.gpt_neox.layers[1].attention.dense.weight[:, 4:8] = 0
        logits = model(ids).logits
    losses = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none")
    np.testing.assert_allclose(arrays["without"], losses, atol=1e-5)
    for removed in REMOVED:
        with pytest.raises(ArgumentError, match="expected") as error:
            request("without", removed=removed, at=5)
        assert "\n" not in str(error.value)


CELL = {"head": "0", "query": "1", "key": "0"}
REGION = {"head": "0", "queries": "0-5", "keys": "0-5"}
WRONG = [
    ("row", {}), ("row", {"heads": "3", "at": "0"}), ("row", {"heads": "0,0", "at": "0"}),
    ("row", {"heads": "0", "at": "-1"}), ("column", {"heads": "0", "at": "١"}),
    ("column", {"heads": "0", "at": "1" * 5000}), ("cell", {**CELL, "key": "99"}),
    ("cell", {**CELL, "head": "0,1"}), ("part", {**REGION, "queries": "5-2"}),
    ("part", {**REGION, "keys": "0--5"}), ("strongest", {**REGION, "count": "0"}),
    ("tile", {"place": "0,0,0,9"}), ("tile", {"place": "9,0,0,0"}),
    ("tile", {"place": "0,0,0,0", "reduce": "median"}), ("image", {"axis": "keys"}),
    ("tokens", {"axis": "keys", "start": "99", "stop": "100"}),
    ("find", {"axis": "keys", "text": "x" * 1000}), ("segments", {"keys": "0-4;5"}),
    ("segments", {"keys": ";".join(["0-4"] * 61)}), ("small", {"call": "0.0.9"}),
    ("scores", {"call": "a.b.c"}), ("without", {"removed": "0.0", "at": "1"}),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "parameters"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_parameters_are_refused_in_one_line(recordings, endpoint, parameters):
    handlers = Handlers(Catalogue({"one": recordings["causal"]}))
    with pytest.raises(ArgumentError) as error:
        handlers.handle(endpoint, {"call": "0.0.0", **parameters})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


BY_DEFAULT = ("biased", "capped", "cross", "padded", "sinks")
ROW = {"heads": "0", "at": "1"}
REQUESTS = {"small": {}, "scores": {}, "cell": CELL, "row": ROW, "column": ROW}


def file_and_responses(recording):
    """Return all data of a standalone page, and some responses of a server."""
    catalogue = Catalogue({"a": recording})
    handle = Handlers(catalogue).handle
    responses = [handle(name, {"call": "0.0.0", **REQUESTS[name]}) for name in REQUESTS]
    contents = FileContents(catalogue, 40_000, 16, lambda share: None)
    inputs = [contents.inputs[indices].parts(head) for indices, head, _ in contents.heads]
    return [contents.deflated({}), *inputs, *responses]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, None])
@pytest.mark.parametrize("name", BY_DEFAULT)
def test_torchs_default_type_and_device_change_nothing(name, kind):
    recording = small_recordings.KINDS[name]()
    expected = file_and_responses(recording)
    with default_elsewhere() if kind is None else default_type(kind):
        responses = file_and_responses(recording)
    assert responses == expected
