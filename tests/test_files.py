"""Whatever is written is the file that was meant, and no other; what killed processes left goes."""

import io
import os
import signal
import stat
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from matplotlib.figure import Figure

import heedful
from heedful.errors import SaveError
from heedful.files import (
    append,
    beside,
    replacing,
    save_tensors,
    whole,
    write_checked_json,
    write_json,
)
from heedful.files.sharded import save_sharded
from heedful.layers import MultiHeadAttention
from heedful.pictures.saving import save as save_picture
from heedful.processes import Processes
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


def prepared(name, **options):
    def write(folder):
        stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(TEXT.encode()))
        try:
            prepare(open_source(["-"]), TokenizerChoice(name, **options), folder / "tokens.npy")
        finally:
            sys.stdin = stdin

    return write


def recorded(folder):
    model = MultiHeadAttention(8, 2)
    with heedful.record(model) as recording:
        model(torch.randn(1, 5, 8))
    recording.save(folder / "r.safetensors")


def lost(folder):
    """Metrics of which lines are lost: what is left is kept in a file of its own."""
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    (folder / "metrics.jsonl").write_text("not a line\n")
    Metrics(folder / "metrics.jsonl", Progress(step=3)).close()


CHARACTERS = CharacterTokenizer.train([TEXT])
PAIRS = [Pair("ab", "ba"), Pair("abc", "cba")] * 5
WRITERS = {
    "json": lambda folder: write_json(folder / "a.json", {"a": 1}),
    "checked json": lambda folder: write_checked_json(folder / "a.json", {"a": 1}),
    "tensors": lambda folder: save_tensors(folder / "a.safetensors", {"a": torch.ones(3)}, {}),
    "tokenizer": CHARACTERS.save,
    "exported tokenizer": lambda folder: export_tokenizer(CHARACTERS, folder, 16),
    "characters": prepared("characters"),
    "bpe": prepared("bpe", vocabulary=270),
    "pairs": lambda folder: prepare_pairs(
        PAIRS, TokenizerChoice("characters"), folder / "pairs.npy", longest=9
    ),
    "png": lambda folder: save_picture(Figure(), folder / "map.png"),
    "svg": lambda folder: save_picture(Figure(), folder / "map.svg"),
    "pdf": lambda folder: save_picture(Figure(), folder / "map.pdf"),
    "recording": recorded,
    "lost metrics": lost,
}


@pytest.fixture
def writer(request):
    return WRITERS[request.param]


def written(write, folder):
    """The names of what a writer writes, in a folder that is made."""
    folder.mkdir()
    write(folder)
    return sorted(path.name for path in folder.iterdir())


def state(path):
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_mode


@pytest.mark.parametrize("writer", WRITERS, indirect=True)
def test_no_link_is_followed(writer, tmp_path):
    """Neither at the file itself nor at the temporary names that versions before could be told."""
    names = written(writer, tmp_path / "first")
    folder, outside = tmp_path / "second", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for name in names:
        (outside / name).write_bytes((tmp_path / "first" / name).read_bytes())
        os.utime(outside / name, (1, 1))
        (folder / name).symlink_to(outside / name)
        for temporary in (f".{name}.part", f".{name}.part.ids", f".{name}.part.text", f".{name}.i"):
            (folder / temporary).symlink_to(outside / "new")
    before = {name: state(outside / name) for name in names}
    writer(folder)
    assert sorted(path.name for path in outside.iterdir()) == names
    assert {name: state(outside / name) for name in names} == before
    assert not any((folder / name).is_symlink() for name in names)


@pytest.mark.parametrize("mask", [0o022, 0o027])
@pytest.mark.parametrize("writer", WRITERS, indirect=True)
def test_a_file_may_be_read_as_the_umask_says(writer, mask, tmp_path):
    before = os.umask(mask)
    try:
        for name in written(writer, tmp_path / "new"):
            assert stat.S_IMODE((tmp_path / "new" / name).stat().st_mode) == 0o666 & ~mask
    finally:
        os.umask(before)


@pytest.mark.parametrize("writer", WRITERS, indirect=True)
def test_what_killed_processes_left_beside_a_file_is_removed(writer, tmp_path):
    names = written(writer, tmp_path / "folder")
    for name in names:
        (tmp_path / "folder" / f".{name}.0123456789abcdef.part").write_bytes(b"half")
    kept = tmp_path / "folder" / ".a.json.not-ours-at-all!.part"
    kept.write_text("somebody's")
    writer(tmp_path / "folder")
    assert sorted(path.name for path in kept.parent.iterdir()) == sorted([*names, kept.name])


KILLED = """
import os, signal, sys
from pathlib import Path
from heedful.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_a_file_that_the_next_one_removes(tmp_path):
    path = tmp_path / "a.json"
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == 1
    write_json(path, 3)
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_of_a_process_that_lives_is_left_alone(tmp_path):
    path = tmp_path / "a.json"
    with replacing(path) as first:
        first.write(b"1")
        write_json(path, 2)
        assert len(list(tmp_path.iterdir())) == 2
    assert path.read_text() == "1"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_another_process_removes_before_it_is_locked_is_made_again(
    tmp_path, monkeypatch
):
    lock, taken = whole.fcntl.flock, []

    def late(file, how):
        if not taken:
            taken.append(os.unlink(file.name))
        lock(file, how)

    monkeypatch.setattr(whole.fcntl, "flock", late)
    write_json(tmp_path / "a.json", 3)
    assert taken
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_waited_for(make, tmp_path):
    odd = tmp_path / ".a.json.0123456789abcdef.part"
    make(odd)
    write_json(tmp_path / "a.json", 3)
    assert sorted(tmp_path.iterdir()) == [odd, tmp_path / "a.json"]


def test_a_failure_leaves_what_was_there_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("before")

    def fail(writes):
        with writes(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    for writes in (replacing, beside):
        with pytest.raises(KeyboardInterrupt):
            fail(writes)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


PLACES = {
    "none/a.json": "there is no directory",
    "file/a.json": "a file where a directory was meant",
    "folder": "a directory where a file was meant",
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_cannot_be_written_is_told_in_a_line(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=f"cannot write .*{PLACES[name]}") as caught:
        write_json(tmp_path / name, 3)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_nothing_is_added_to_what_a_link_leads_to(tmp_path):
    (tmp_path / "other").write_text("before")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(SaveError, match="a link where a file was meant"):
        append(tmp_path / "metrics.jsonl")
    assert (tmp_path / "other").read_text() == "before"


@pytest.mark.parametrize("name", [".1.part", "1"])
def test_parts_of_many_processes_are_written_through_no_link(name, tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    (tmp_path / "sharded").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "sharded" / name).symlink_to(tmp_path / "outside")
    (tmp_path / "outside" / "kept").write_text("before")
    try:
        with pytest.raises(SaveError, match="link"):
            save_sharded(tmp_path / "sharded", {"a": torch.ones(3)}, {"step": 1}, Processes())
    finally:
        dist.destroy_process_group()
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["kept"]


def test_the_longest_names_are_written(tmp_path):
    path = tmp_path / ("é" * 120 + ".json")
    with replacing(path) as file:
        file.write(b"1")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
