"""Atomic writes: no link is followed, the umask applies, and a failed write changes nothing."""

import io
import os
import stat
import sys

import pytest
import torch
from matplotlib.figure import Figure

import heedful
from heedful.errors import SaveError
from heedful.files import atomic_write, save_tensors, temporary_file, write_checked_json, write_json
from heedful.layers import MultiHeadAttention
from heedful.pictures.saving import save as save_picture
from heedful.text import (
    CharacterTokenizer,
    TokenizerChoice,
    export_tokenizer,
    open_source,
    prepare,
    prepare_pairs,
)
from heedful.text.pairs import Pair
from heedful.train.metrics import Metrics, Progress

TEXT = "the cat sat on the mat\n" * 30


def preparation_writer(name, **options):
    def write(folder):
        stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(TEXT.encode()))
        try:
            prepare(open_source(["-"]), TokenizerChoice(name, **options), folder / "tokens.npy")
        finally:
            sys.stdin = stdin

    return write


def write_recording(folder):
    model = MultiHeadAttention(8, 2)
    with heedful.record(model) as recording:
        model(torch.randn(1, 5, 8))
    recording.save(folder / "r.safetensors")


CHARACTERS = CharacterTokenizer.train([TEXT])
PAIRS = [Pair("ab", "ba"), Pair("abc", "cba")] * 5
WRITERS = {
    "json": lambda folder: write_json(folder / "a.json", {"a": 1}),
    "checked json": lambda folder: write_checked_json(folder / "a.json", {"a": 1}),
    "tensors": lambda folder: save_tensors(folder / "a.safetensors", {"a": torch.ones(3)}, {}),
    "tokenizer": CHARACTERS.save,
    "exported tokenizer": lambda folder: export_tokenizer(CHARACTERS, folder, 16),
    "characters": preparation_writer("characters"),
    "bpe": preparation_writer("bpe", vocabulary=270),
    "pairs": lambda folder: prepare_pairs(
        PAIRS, TokenizerChoice("characters"), folder / "pairs.npy", max_length=9
    ),
    "png": lambda folder: save_picture(Figure(), folder / "map.png"),
    "svg": lambda folder: save_picture(Figure(), folder / "map.svg"),
    "pdf": lambda folder: save_picture(Figure(), folder / "map.pdf"),
    "recording": write_recording,
    "metrics": lambda folder: Metrics(folder / "metrics.jsonl", Progress()).close(),
}


@pytest.fixture
def writer(request):
    return WRITERS[request.param]


def names_written(write, folder):
    """Return the names of the files that a writer writes into a new folder."""
    folder.mkdir()
    write(folder)
    return sorted(path.name for path in folder.iterdir())


def state(path):
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


@pytest.mark.parametrize("writer", WRITERS, indirect=True)
def test_no_link_is_followed(writer, tmp_path):
    names = names_written(writer, tmp_path / "first")
    folder, outside = tmp_path / "second", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for name in names:
        (outside / name).write_bytes((tmp_path / "first" / name).read_bytes())
        os.utime(outside / name, (1, 1))
        (folder / name).symlink_to(outside / name)
    earlier = {name: state(outside / name) for name in names}
    writer(folder)
    assert sorted(path.name for path in outside.iterdir()) == names
    assert {name: state(outside / name) for name in names} == earlier
    assert not any((folder / name).is_symlink() for name in names)


@pytest.mark.parametrize("mask", [0o022, 0o027])
@pytest.mark.parametrize("writer", WRITERS, indirect=True)
def test_a_file_may_be_read_as_the_umask_says(writer, mask, tmp_path):
    earlier = os.umask(mask)
    try:
        for name in names_written(writer, tmp_path / "new"):
            assert stat.S_IMODE((tmp_path / "new" / name).stat().st_mode) == 0o666 & ~mask
    finally:
        os.umask(earlier)


def test_a_failed_write_leaves_the_old_file_and_no_temporary_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("before")

    def fail(writes):
        with writes(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    for writes in (atomic_write, temporary_file):
        with pytest.raises(KeyboardInterrupt):
            fail(writes)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["none/a.json", "file/a.json", "folder"])
def test_an_unwritable_path_is_a_one_line_error(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=f"cannot write .*{name}"):
        write_json(tmp_path / name, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
