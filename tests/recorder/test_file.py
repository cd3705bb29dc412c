"""Saving and loading of recordings: a file is restored exactly, or refused with a clear error."""

import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from shown_maps import Given, recorded

import heedful
from heedful.errors import RunError, SaveError
from heedful.files import read_tensors, tensor_files
from heedful.models import GPT, GPTConfig
from heedful.ops.masks import Causal, KeyRanges, Window
from heedful.recording import Recording, file, from_attentions
from heedful.recording.proof import Layout

IDS = torch.arange(2 * 11).view(2, 11) % 23


def write_without_sums(path, tensors, about):
    """Write a file with the header `about`, and without checksums of tensors."""
    names = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    header = tensor_files._header(tensors, names, about)
    parts = [tensor_files.bytes_of(tensors[name]) for name in names]
    path.write_bytes(header + b"".join(parts))


@pytest.fixture
def recording():
    model = GPT(GPTConfig(vocabulary=23, context_length=32, width=24, layers=2, heads=4)).eval()
    return recorded(model, IDS, values=True)


def foreign():
    """Record two calls with one bias, and a mask without structure."""

    def attend(x, table, bias):
        first = heedful.attention(x, x, x, mask=table, bias=bias)
        return heedful.attention(first, first, x, mask=table, bias=bias)

    table = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    return recorded(Given(attend), torch.randn(2, 3, 7, 4), table, torch.randn(3, 7, 7))


def assert_equal(recording, loaded):
    """Assert that two recordings are equal for a user."""
    assert len(recording) == len(loaded) > 0
    for text, other in zip(recording.sequences, loaded.sequences, strict=True):
        assert [repr(call) for call in text] == [repr(call) for call in other]
        for a, b in zip(text, other, strict=True):
            assert (a.layer, a.index, repr(a.check)) == (b.layer, b.index, repr(b.check))
            assert len(a.parts) == len(b.parts)
            assert type(a.causes.mask) is type(b.causes.mask)
            for part, other_part in zip(a.parts, b.parts, strict=True):
                assert torch.equal(part.weights(), other_part.weights())


class Windows(torch.nn.Module):
    """Attention in four windows of each text; only its weights are stored."""

    def forward(self, x):
        x = x.unflatten(1, (4, 3)).flatten(0, 1)[:, None]
        return (x @ x.mT).relu().softmax(-1) @ x


def test_a_loaded_recording_equals_the_saved_one(recording, tmp_path):
    loaded = heedful.load(recording.save(tmp_path / "own.safetensors"))
    assert_equal(recording, loaded)
    assert torch.equal(loaded[1].value_norm(), recording[1].value_norm())
    unstructured = foreign()
    assert_equal(unstructured, heedful.load(unstructured.save(tmp_path / "odd.safetensors")))
    with heedful.record(model := Windows(), axes={"Windows": "(b w) h n d"}) as windows:
        model(torch.randn(2, 12, 4))
    assert len(windows.sequences[1][0].parts) == 4
    assert windows[0].map_ is not None
    assert_equal(windows, heedful.load(windows.save(tmp_path / "windows")))


def test_missed_modules_are_saved(recording, tmp_path):
    recording.missed["gate"] = "no queries"
    assert heedful.load(recording.save(tmp_path / "own")).missed == {"gate": "no queries"}


def test_masks_are_saved_as_bits_and_a_shared_bias_once(tmp_path):
    unstructured = foreign()
    assert unstructured[0].causes.mask.bits.dtype == torch.uint8
    unstructured.save(tmp_path / "odd.safetensors")
    header = (tmp_path / "odd.safetensors").read_bytes()
    length = int.from_bytes(header[:8], "little")
    names = json.loads(header[8 : 8 + length])
    assert "0.bias" in names
    assert "1.bias" not in names


STRUCTURES = [
    Causal(2),
    Causal(-2),
    Window(2, 1),
    Causal(1) & Window(3, 1),
    KeyRanges(torch.tensor([0, 0, 1, 4, 4, 2, 6]), torch.tensor([2, 4, 3, 7, 5, 4, 7])),
]


def test_structured_masks_are_restored(tmp_path):
    attend = lambda x: [heedful.attention(x, x, x, mask=mask) for mask in STRUCTURES]  # noqa: E731
    recording = recorded(Given(attend), torch.randn(2, 3, 7, 4))
    assert_equal(recording, loaded := heedful.load(recording.save(tmp_path / "r")))
    for call, mask in zip(loaded, STRUCTURES, strict=True):
        assert torch.equal(call.causes.mask.crop((3, 7, 7)), mask.crop((7, 7)))


def test_only_equal_views_of_memory_are_saved_once():
    x = torch.rand(3, 3)
    others = {"turned": x.mT, "row": x[:1], "read": x.view(torch.int32), "copy": x.clone()}
    empty = {"no rows": x[:0], "no columns": torch.empty(0, 3)}
    aliases = file._aliases({"first": x, **others, "again": x.view(3, 3), **empty})
    assert aliases == {"again": "first"}


def test_only_recordings_are_overwritten(recording, tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    for path in tuple(tmp_path.iterdir()):
        content_before = path.read_bytes()
        with pytest.raises(SaveError, match=f"{path.name} exists and is not a recording; .*new"):
            recording.save(path)
        assert path.read_bytes() == content_before
    (tmp_path / "a").touch()  # `tempfile` creates empty files
    for _ in range(2):
        assert len(heedful.load(recording.save(tmp_path / "a"))) == len(recording)


def test_other_files_are_refused_in_one_line(recording, tmp_path):
    path = recording.save(tmp_path / "r.safetensors")
    content = path.read_bytes()

    def refused(data, words):
        path.write_bytes(data)
        with pytest.raises(RunError, match=words) as raised:
            heedful.load(path)
        assert "\n" not in str(raised.value)

    refused(content[: len(content) // 2], "cannot read .*record again")
    refused(content[:99], "cannot read .*damaged or truncated.*record again")  # within the header
    refused(b"", "r.safetensors is not a recording; .*an empty file")
    refused(b"not a file of tensors" * 9, "r.safetensors is not a recording; .*a text")
    refused(content.replace(b"0.query", b"0.queri"), "damaged")
    refused(content.replace(b"header_crc32", b"header_crc31"), "has lost its checksum")
    path.write_bytes(content)
    rewrite(path, put("version", 9))
    refused(path.read_bytes(), "has version 9 of the file format; expected version 1; record again")
    with pytest.raises(RunError, match="is a directory; expected a file written by"):
        heedful.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"likely cause: a model, which heedful\.load_model"):
        heedful.load(tmp_path)
    with pytest.raises(SaveError, match="Is a directory; check the path"):
        recording.save(tmp_path)
    with pytest.raises(RunError, match=r"no file .*none"):
        heedful.load(tmp_path / "none.safetensors")


def rewrite(path, change):
    """Write the file again, with a changed header and a valid checksum of it."""
    tensors, about = read_tensors(path)
    about = change(about) or about
    write_without_sums(path, {name: tensor.clone() for name, tensor in tensors.items()}, about)


def put(path, value):
    """Return a function that sets a value in a header by its path, such as "calls.0.layer"."""

    def change(about):
        *keys, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for key in keys:
            about = about[key]
        about[last] = value

    return change


DAMAGE = {
    "version": ("two", None, 0, 1.5),
    "same": ([1], 3, {"1.query": "none"}),
    "calls": (3, {"a": 1}, [3], None),
    "tokens": (3, ["flat"], [[1]]),
    "calls.0.name": (3, None),
    "calls.0.layer": ("x", 0.5),
    "calls.0.layout": (3, None, ["sure", ""], ["told", 3]),
    "calls.0.texts": (1, "2"),
    "calls.0.first": (-1, 1, "x"),
    "calls.0.against": (3, None, ["0"], {"x": "wrong"}, {"2": "wrong"}),
    "calls.0.kind": ("other", 3),
    "calls.0.scale": ("x", None, torch.nan, torch.inf),
    "calls.0.heads": ([1], [0, 1, 1, 2], "abcd", [0, 1, 2, "3"], 4),
    "calls.0.tokens": ([], 3, [{}], None),
    "calls.0.tokens_of": ([], [0], [0, 7], None),
    "calls.0.tokens.0.keys": ([3, 1, 2], [0, 99], [-2, 3], [1], "none", "0.query", 4),
    "calls.0.tokens.0.mask": ([], {}, {"causal": "x"}, {"window": 0, "offset": 0}, 3,
                              {"bits": "0.query", "keys": 11}),
    "calls.0.check": ([], {}, {"worst": 0.0, "wrong": 1}, "x"),
    "calls.0.check.worst": ("x", None, [], torch.nan),
    "calls.0.check.tolerance": ("x", torch.nan, torch.inf),
}  # fmt: skip
CHANGES = [put(path, value) for path, values in DAMAGE.items() for value in values]


@pytest.mark.parametrize("change", [lambda about: ["a", "list"], *CHANGES])
def test_a_damaged_header_is_refused_in_one_line(recording, tmp_path, change):
    path = recording.save(tmp_path / "r.safetensors")
    rewrite(path, change)
    with pytest.raises(RunError) as raised:
        heedful.load(path)
    message = str(raised.value)
    assert "r.safetensors" in message
    assert "\n" not in message
    assert "train" not in message
    assert "record again" in message or "is not a recording" in message


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "r.safetensors"
    return from_attentions([torch.eye(3).expand(1, 2, 3, 3)]).save(path)


@settings(max_examples=200)
@given(index=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_any_changed_byte_of_the_header_is_detected(saved, index, bits):
    content = bytearray(saved.read_bytes())
    content[index % (8 + int.from_bytes(content[:8], "little"))] ^= bits
    path = saved.with_name("changed")
    path.write_bytes(content)
    with pytest.raises(RunError) as raised:
        heedful.load(path)
    assert "\n" not in str(raised.value)


def test_tensors_of_another_shape_or_dtype_are_refused(recording, tmp_path):
    path = recording.save(tmp_path / "r.safetensors")
    for name, tensor in [
        ("0.query", torch.ones(3)),
        ("0.key", torch.ones(2, 3, 11, 6)),  # 4 heads cannot share 3
        ("0.value", torch.ones(2, 4, 10, 6)),
        ("0.query", torch.ones(2, 4, 11, 6, dtype=torch.int)),
        ("0.ids", torch.ones(2, 10)),
        ("0.sinks", torch.ones(3)),
        ("0.sums", torch.ones(2, 4, 10)),
        ("0.sums", torch.ones(2, 4, 11, dtype=torch.int)),
        ("0.bias", torch.ones(3, 11)),
        ("0.weights", torch.ones(2, 4, 11, 10)),
    ]:
        tensors, about = read_tensors(path)
        changed = {key: value.clone() for key, value in tensors.items()} | {name: tensor}
        write_without_sums(tmp_path / "changed", changed, about)
        with pytest.raises(RunError, match=r"cannot read .*record again"):
            heedful.load(tmp_path / "changed")


def flip_bit(path, name):
    """Flip one bit of a tensor in the file."""
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[:8], "little")
    [start, end] = json.loads(content[8 : 8 + size])[name]["data_offsets"]
    content[8 + size + (start + end) // 2] ^= 4
    path.write_bytes(content)


def test_a_flipped_bit_is_detected_when_its_call_is_used(tmp_path):
    source = foreign().save(tmp_path / "whole.safetensors")
    names = sorted(read_tensors(source)[0])
    assert {"0.bias", "0.query", "1.key"} <= set(names)
    assert any("mask" in name for name in names)
    for name in names:
        path = tmp_path / "r.safetensors"
        path.write_bytes(source.read_bytes())
        flip_bit(path, name)
        loaded = heedful.load(path)
        damaged, message = int(name[0]), f"r.safetensors is damaged: {name} is not what was"
        call = loaded[damaged]
        for method in (call.weights, call.summary, call.top, loaded.save):
            with pytest.raises(RunError, match=message):
                method(*{"top": (1,), "save": (tmp_path / "s",)}.get(method.__name__, ()))
        if name == "0.bias" or name.endswith("mask"):  # both calls share it
            with pytest.raises(RunError, match=message):
                loaded[1].weights()
        else:
            loaded[1 - damaged].summary()
    assert not (tmp_path / "s").exists()


CUT = """
import os, sys, heedful
loaded, used = heedful.load(sys.argv[1]), heedful.load(sys.argv[1])
calls = [*used]
used[0].summary()
uses = [lambda: loaded[0], lambda: loaded.tokens, lambda: loaded.save(sys.argv[1] + ".copy"),
        used[0].weights, used[0].summary, lambda: used[0].top(1),
        lambda: used[1].weights(0, [1], [2]),
        lambda: used[0].masked_cells((1, 1), 0), lambda: used.sequences[1][0]]
os.truncate(sys.argv[1], int(sys.argv[2]))
for use in uses:
    try:
        use()
    except heedful.errors.RunError as error:
        assert "truncated" in str(error), error
        print("refused")
"""


@pytest.mark.parametrize("size", [0, 5000])
@pytest.mark.parametrize("kind", [foreign, None])
def test_a_file_that_is_truncated_while_it_is_used_is_refused(recording, tmp_path, kind, size):
    path = (kind() if kind else recording).save(tmp_path / "r.safetensors")
    program = [sys.executable, "-c", CUT, path, str(size)]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr  # no SIGBUS
    assert result.stdout.split().count("refused") >= 7


def test_a_file_that_is_written_to_is_compared_again(recording, tmp_path):
    loaded = heedful.load(recording.save(tmp_path / "r.safetensors"))
    weights = loaded[0].weights()
    os.utime(tmp_path / "r.safetensors")
    assert torch.equal(loaded[0].weights(), weights)
    with (tmp_path / "r.safetensors").open("r+b") as file:  # the file that is mapped
        file.seek(-100, 2)
        file.write(b"?")
    with pytest.raises(RunError, match="is not what was written"):
        [call.weights() for call in loaded]


def test_a_file_may_be_replaced_and_deleted_while_it_is_used(recording, tmp_path):
    path = recording.save(tmp_path / "r.safetensors")
    loaded = heedful.load(path)
    weights = recording[0].weights()
    from_attentions([torch.eye(3).expand(1, 2, 3, 3)]).save(path)
    assert torch.equal(loaded[0].weights(), weights)
    path.unlink()
    assert torch.equal(loaded[0].weights(), weights)


def test_refutations_and_layouts_are_saved(recording, tmp_path):
    assert len(recording) == 2
    first, second = recording._captures
    first.layout = Layout("guessed", "the axes may be others")
    second.refutations[1] = "sequence 1 is of another text"
    recording = Recording(recording._captures)
    loaded = heedful.load(recording.save(tmp_path / "r"))
    proofs = [[call.proof for call in text] for text in loaded.sequences]
    assert proofs == [["proved", "proved"], ["proved", "refuted"]]
    assert (loaded[0].layout, loaded[0].why) == ("guessed", "the axes may be others")
    assert loaded.sequences[1][1].why == "sequence 1 is of another text"
    with pytest.raises(RunError, match=r"not recorded correctly: sequence 1 is of another"):
        loaded.sequences[1][1].weights()
