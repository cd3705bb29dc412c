import io
import os
import sys
import threading
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.errors import TextError
from heedful.text import FileSource, StringSource, open_source, python_reference, sources
from heedful.text.sources import SkippedFilesWarning


def read(*names, size=sources.PIECE, **options):
    return "".join(open_source(names, **options).pieces(size))


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "b.txt": "second",
        "a.txt": "first\n",
        "c.md": "third",
        "deeper/z.txt": "fourth",
        ".hidden.txt": "no",
        ".git/x.txt": "no",
        "empty.txt": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_folder_is_read_in_order_without_hidden_files(folder):
    assert read(folder) == "first\nsecond\nthird\nfourth"
    assert read(folder / "c.md", str(folder / "a.txt")) == "third\nfirst\n"
    assert read(folder, include="*.txt") == "first\nsecond\nfourth"
    assert read(folder, include="deeper/*") == "fourth"
    assert open_source([folder]).title == "5 files"
    assert open_source([folder]).size == sum(map(len, ["first\n", "second", "third", "fourth"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_text_is_read_unchanged(text, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", 3)  # blocks end inside characters
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read(path, size=5) == text
    assert "".join(StringSource(text).pieces(5)) == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=st.text(st.sampled_from("aé中🙂"), max_size=9),
    bad=st.sampled_from([b"\xff", b"\xc3(", b"\xe2\x82a", b"\x80", b"\xed\xa0\x80"]),
    has_mark=st.booleans(),
    block=st.integers(1, 9),
)
def test_errors_name_an_invalid_byte_and_its_position(
    prefix, bad, has_mark, block, tmp_path, monkeypatch
):
    monkeypatch.setattr(sources, "_BLOCK", block)
    data = (b"\xef\xbb\xbf" if has_mark else b"") + prefix.encode() + bad + b" and more"
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    with pytest.raises(UnicodeDecodeError) as caught:
        data.decode()
    start = caught.value.start
    with pytest.raises(TextError, match=rf"bad\.txt .*0x{data[start]:02x} at position {start},"):
        read(path)


def test_standard_input(monkeypatch, folder):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("zwölf".encode())))
    source = open_source(["-", folder / "b.txt"])
    assert source.is_single_use
    assert source.size is None
    assert "".join(source.pieces()) == "zwölf\nsecond"
    assert open_source(["-"]).title == "standard input"
    with pytest.raises(TextError, match="twice"):
        open_source(["-", "-"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_read_once(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    source = FileSource((str(path),))
    assert source.is_single_use
    writer = threading.Thread(target=path.write_text, args=("through a pipe",))
    writer.start()
    assert "".join(source.pieces()) == "through a pipe"
    writer.join()


def test_the_default_is_the_python_reference(monkeypatch):
    from pydoc_data.topics import topics

    text = "\n".join(topics[name].rstrip("\n") + "\n" for name in sorted(topics))
    source = open_source()
    assert "".join(source.pieces()) == text
    assert (source.size, source.is_single_use) == (len(text.encode()), False)
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(TextError, match="minimal build"):
        python_reference()


def test_binary_files_in_a_folder_are_skipped_with_a_warning(tmp_path):
    files = {
        "a.md": b"one\r\n",
        "b/c.md": b"two",
        "d.txt": b"three",
        "a.png": b"\x89PNG\r\n",
        "b/c.pdf": b"%PDF-1.4 \xe2",
        "d.bin": b"a\0",
        "e.gz": b"\x1f\x8b",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.warns(SkippedFilesWarning, match=r"skipped .* and 1 more; --include") as warned:
        assert read(tmp_path) == "one\r\ntwo\nthree"
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_source([tmp_path], "*.txt")
    for name in ("a.md", "b/c.md", "d.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(TextError, match="has no text"):
        open_source([tmp_path])
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16"))  # a text, if in another encoding
    with pytest.warns(SkippedFilesWarning), pytest.raises(TextError, match="UTF-8"):
        read(tmp_path)


@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"abc\xe2\x82", "0xe2 at position 3,"),
        ("éELF".encode() + b"\0\0", "zero byte at position 5,"),
    ],
)
def test_empty_and_binary_files_are_refused(content, words, block, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", block)
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(TextError, match=words):
        read(tmp_path / "text")


def test_unreadable_sources_are_refused(folder, forbid):
    forbid(folder / "a.txt")
    for call, words in (
        (lambda: read(folder), "Permission denied"),
        (lambda: open_source([folder], include="*.py"), r"no text; expected .* \*\.py"),
        (lambda: open_source([folder / "nowhere.txt"]), r"cannot read .*No such file"),
        (lambda: StringSource("").pieces(), "empty"),
    ):
        with pytest.raises(TextError, match=words):
            call()
