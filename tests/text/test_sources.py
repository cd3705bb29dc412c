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
from heedful.text.sources import LeftOutWarning


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


def test_a_folder_with_no_such_file(folder):
    with pytest.raises(TextError, match=r"no text; expected files that match \*\.py"):
        open_source([folder], include="*.py")
    with pytest.raises(TextError, match="no text"):
        open_source([folder / ".git"], include="*.md")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_text_comes_through_unchanged(text, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", 3)  # blocks end inside characters
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read(path, size=5) == text
    assert "".join(StringSource(text).pieces(5)) == text


def test_line_endings_stay(tmp_path):
    (tmp_path / "a").write_bytes(b"one\r\ntwo\r")
    (tmp_path / "b").write_bytes(b"three\n\n")
    assert read(tmp_path) == "one\r\ntwo\rthree\n\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.text(st.sampled_from("aé中🙂"), max_size=9),
    bad=st.sampled_from([b"\xff", b"\xc3(", b"\xe2\x82a", b"\x80", b"\xed\xa0\x80"]),
    mark=st.booleans(),
    block=st.integers(1, 9),
)
def test_the_offending_byte_is_named_with_its_place_in_the_file(
    before, bad, mark, block, tmp_path, monkeypatch
):
    monkeypatch.setattr(sources, "_BLOCK", block)
    data = (b"\xef\xbb\xbf" if mark else b"") + before.encode() + bad + b" and more"
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    with pytest.raises(UnicodeDecodeError) as whole:
        data.decode()
    place = whole.value.start
    with pytest.raises(TextError, match=rf"bad\.txt .*0x{data[place]:02x} at position {place},"):
        read(path)


def test_a_character_cut_off_by_the_end_of_the_file(tmp_path):
    (tmp_path / "cut.txt").write_bytes(b"abc\xe2\x82")
    with pytest.raises(TextError, match="0xe2 at position 3,"):
        read(tmp_path / "cut.txt")


@pytest.mark.parametrize("block", [1, 4, 100])
def test_a_binary_file_is_refused_with_the_place(block, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", block)
    (tmp_path / "program").write_bytes("éELF".encode() + b"\0\0")
    with pytest.raises(TextError, match="zero byte at position 5,"):
        read(tmp_path / "program")


def test_nothing_to_read(tmp_path, monkeypatch):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbf")
    for names in (["empty.txt"], ["mark.txt"], ["empty.txt", "mark.txt"]):
        with pytest.raises(TextError, match="empty"):
            read(*(tmp_path / name for name in names))
    with pytest.raises(TextError, match="empty"):
        StringSource("").pieces()
    with pytest.raises(TextError, match=r"cannot read .*nowhere\.txt: No such file"):
        open_source([tmp_path / "nowhere.txt"])


def test_what_may_not_be_read(folder, forbid):
    forbid(folder / "a.txt")
    with pytest.raises(TextError, match="Permission denied"):
        read(folder)


def test_a_file_that_fails_while_it_is_read(folder, monkeypatch):
    class Failing(io.BytesIO):
        def read(self, *_):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("builtins.open", lambda *_: Failing())
    with pytest.raises(TextError, match=r"a\.txt: Input/output error"):
        read(folder / "a.txt")


def test_standard_input(monkeypatch, folder):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("zwölf".encode())))
    source = open_source(["-", folder / "b.txt"])
    assert source.once
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
    assert source.once
    writer = threading.Thread(target=path.write_text, args=("through a pipe",))
    writer.start()
    assert "".join(source.pieces()) == "through a pipe"
    writer.join()


def test_every_topic_of_the_python_reference_is_there_in_order():
    from pydoc_data.topics import topics

    text = python_reference()
    assert text == "\n".join(topics[name].rstrip("\n") + "\n" for name in sorted(topics))
    assert len(topics) > 50


def test_a_python_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(TextError, match="minimal build"):
        python_reference()


def test_with_no_name_the_python_reference():
    source = open_source()
    assert "".join(source.pieces()) == python_reference()
    assert source.size == len(python_reference().encode())
    assert not source.once


PICTURES = {
    "cover.png": b"\x89PNG\r\n\x1a\n\0\0",
    "b/scan.pdf": b"%PDF-1.4 \xe2\xe3",
    "data.bin": b"abc\0def",
    "zip.gz": b"\x1f\x8b\x08",
}


def test_pictures_in_a_folder_are_left_out_and_told_of(tmp_path):
    for name, content in {"a.md": b"one", "b/c.md": b"two", "d.txt": b"three", **PICTURES}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    words = r"left out of .*: scan.pdf, .* and 1 more; --include"
    with pytest.warns(LeftOutWarning, match=words) as told:
        source = open_source([tmp_path])
    assert len(told) == 1
    assert "".join(source.pieces()) == "one\ntwo\nthree"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_source([tmp_path], "*.txt")
    with pytest.raises(TextError, match="binary"):  # asked for by name
        "".join(open_source([tmp_path], "*.bin").pieces())
    for name in ("a.md", "b/c.md", "d.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(TextError, match="has no text"):
        open_source([tmp_path])


def test_a_text_in_utf_16_is_told_of_and_not_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16"))
    with pytest.raises(TextError, match="UTF-8"):
        "".join(open_source([tmp_path]).pieces())
