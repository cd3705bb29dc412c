"""Word-vector tables from files, and errors for invalid files."""

import numpy as np
import pytest

from heedful.errors import TextError
from heedful.text.word_vectors import WordVectors, read_vectors

VALID = {
    "plain.csv": "king,0.9,0.5\nqueen,0.2,0.5\n",
    "heading.csv": "word,x,y\nking,0.9,0.5\n\n queen ,0.2,0.5\n",
    "pandas.csv": ",0,1\nking,0.9,0.5\nqueen,0.2,0.5\n",
    "named-index.csv": "word,0,1\nking,0.9,0.5\nqueen,0.2,0.5\n",
    "windows.csv": '"king",0.9,0.5\r\nqueen,0.2,0.5\r\n',
    "mark.csv": "\ufeffking,0.9,0.5\nqueen,0.2,5e-1",
    "table.json": '{"king": [0.9, 0.5], "queen": [0.2, 0.5]}',
}


@pytest.mark.parametrize("name", VALID)
def test_tables(name, tmp_path):
    (tmp_path / name).write_text(VALID[name])
    table = read_vectors(tmp_path / name)
    assert table.words == ["king", "queen"]
    np.testing.assert_allclose(table.table, [[0.9, 0.5], [0.2, 0.5]], atol=1e-7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Word,0,1,2\na,0.5,1.0,2\n", ["a"]),
        ("cat,0,1\ndog,0.5,0.5\n", ["cat", "dog"]),
        ("a,0,1,2\nb,3,4,5\n", ["a", "b"]),
        ('a,1\n"""",2\n",",4\n', ["a", '"', ","]),
    ],
)
def test_headings_and_quoted_words(text, words, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(text)
    assert read_vectors(path).words == words


INVALID = {
    "lone.csv": ('a,1,2\n",3,4\nb,5,6\n', "not CSV: .* quotation mark"),
    "few.csv": ("a,1,2\nb,3\n", "line 2 .* has 1 number; expected 2"),
    "word.csv": ("a,1,2\nb,x,2\n", "line 2 .* has 'x'; expected finite numbers"),
    "semicolons.csv": ("a;1;2\nb;3;4\n", "line 1 .* no vector; .* other than the comma"),
    "nameless.csv": ("a,1\n,2\n", "line 2 .* no word"),
    "large.csv": ("a,1\nb,1e200\n", "line 2 .* has 1e[+]200"),
    "twice.csv": ("a,1\nb,2\na,3\n", "line 3 .* repeats 'a'"),
    "empty.csv": ("\n\n", "no words"),
    "nan.csv": ("a,1\nb,nan\n", "line 2 .* has nan"),
    "true.json": ('{"a": [1, true]}', "'a' .* has True"),
    "broken.json": ('{"a": [1', "is not JSON"),
    "list.json": ("[1, 2]", "not a table of words"),
    "twice.json": ('{"a": [1], "a": [2]}', "repeats 'a'"),
    "binary.csv": (b"\xff\xfe\x00", "it is not UTF-8"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_table_is_a_one_line_error(name, tmp_path):
    text, words = INVALID[name]
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TextError, match=words):
        read_vectors(tmp_path / name)
    with pytest.raises(TextError, match=r"cannot read .*No such file"):
        read_vectors(tmp_path / "none.csv")


def test_a_vector_that_is_not_finite_is_refused():
    with pytest.raises(TextError, match="'·b' that is not finite"):
        WordVectors(["a", "·b"], np.array([[1, 2], [np.nan, 3]], np.float32))


def test_rows_of_words_with_and_without_a_space():
    table = WordVectors(["·night", "day", "·day"], np.eye(3))
    assert [table.row(word) for word in ("night", " night", "day", "·day")] == [0, 0, 1, 2]
    with pytest.raises(TextError, match=r"no word 'nigth' among 3; expected .* ·night"):
        table.row("nigth")
