import re
from datetime import date, datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heedful.errors import RunError, TextError
from heedful.text import (
    Pair,
    PairFile,
    TokenizerChoice,
    date_pairs,
    prepare_pairs,
    read_pairs,
    unseen_date_pairs,
)
from heedful.text.example_dates import FORMS, WEEKDAYS, format_date
from heedful.text.token_file import write_ids

PAIRS = [Pair("good night", "gute Nacht"), Pair("naïve café", "火 🙂"), Pair("a b", "c")] * 4
CHARACTERS = TokenizerChoice("characters")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\tb\nno tab here\n", "line 2 of .* is not a pair"),
        (b"a\tb\n\nc\td\n", "line 2 of .* is not a pair"),
        (b"a\tb\tlicence\n", "line 1 of .* is not a pair"),
        (b"a\tb\nc\td\n \te\n", "line 3 of .* is not a pair"),
        (b"a\t\n", "line 1 of .* is not a pair"),
    ],
)
def test_errors_name_lines_that_are_not_pairs(content, words, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(TextError, match=words):
        read_pairs(path)


def test_line_endings_and_a_byte_order_mark_are_removed(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("\ufeffgood night\tgute Nacht\r\n a b \tc\u2028d".encode())
    assert read_pairs(path) == [("good night", "gute Nacht"), ("a b", "c\u2028d")]


@pytest.mark.parametrize("kind", ["characters", "bpe", "cl100k_base"])
def test_ids_decode_to_the_texts(kind, tmp_path, request, monkeypatch):
    if kind == "cl100k_base":
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(request.getfixturevalue("data")))
    choice = TokenizerChoice(kind, vocabulary=300)
    tokenizer, file = prepare_pairs(PAIRS, choice, tmp_path / "p", max_length=40, validation=0.25)
    assert (len(file), len(file.train), len(file.validation)) == (12, 9, 3)
    for split, expected in ((file.train, PAIRS[:9]), (file.validation, PAIRS[9:])):
        for i, pair in enumerate(expected):
            for ids, text in zip(split[i], pair, strict=True):
                assert ids[-1] == tokenizer.size + 1
                assert tokenizer.decode(ids[:-1]) == text


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text("abc ", min_size=1), st.text("xyz", min_size=1)), min_size=1),
    st.floats(0, 0.9),
)
def test_any_pairs_are_kept_in_order_and_split_once(tmp_path, pairs, validation):
    path, pairs = tmp_path / "p.npy", [Pair(*pair) for pair in pairs]
    tokenizer, file = prepare_pairs(pairs, CHARACTERS, path, max_length=9999, validation=validation)
    loaded = PairFile(path, tokenizer.size + 1, validation)
    ids = [split[i] for split in (loaded.train, loaded.validation) for i in range(len(split))]
    assert [tuple(tokenizer.decode(side[:-1]) for side in pair) for pair in ids] == pairs
    assert len(file.train) == int(len(pairs) * (1 - validation))


def test_a_text_that_is_too_long_is_refused_with_its_line(tmp_path):
    with pytest.raises(TextError, match=r"source of line 1 has 11 tokens.*--context-length 11"):
        prepare_pairs(PAIRS, CHARACTERS, tmp_path / "p.npy", max_length=10)
    pairs = [Pair("ab", "cd"), Pair("a", "b" * 5), Pair("a" * 9, "b")]
    with pytest.raises(TextError, match=r"target of line 2 has 6 tokens.*--context-length 10"):
        prepare_pairs(pairs, CHARACTERS, tmp_path / "p.npy", max_length=5)
    assert not list(tmp_path.iterdir())
    prepare_pairs(pairs, CHARACTERS, tmp_path / "p.npy", max_length=10)


def test_files_without_pairs_are_refused(tmp_path):
    for ids in ([1, 2, 3], [1, 9], [1, 9, 2, 9, 3], [1, 9, 2, 9, 3, 9]):
        with (tmp_path / "p.npy").open("w+b") as file:
            write_ids(file, [np.array(ids)], np.dtype(np.uint16))
        with pytest.raises(RunError, match="no pairs"):
            PairFile(tmp_path / "p.npy", end=9)


def parse_by_datetime(text):
    """Parse a written date with the standard library only."""
    text = re.sub(r"(\d)(st|nd|rd|th)", r"\1", text).removeprefix("the ").replace(" of ", " ")
    weekday, comma, rest = text.partition(", ")
    text = rest if comma and weekday in WEEKDAYS else text
    for form in ("%d %B %Y", "%B %d, %Y", "%b %d %Y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y",
                 "%d.%m.%Y", "%m/%d/%Y", "%Y, %B %d", "%Y%m%d"):  # fmt: skip
        try:
            day = datetime.strptime(text, form).date()
        except ValueError:
            continue
        assert weekday not in WEEKDAYS or WEEKDAYS[day.weekday()] == weekday
        return day
    raise AssertionError(text)


def test_formatted_dates_are_parsed_by_the_standard_library():
    pairs = [*date_pairs()[::40], *unseen_date_pairs()]
    for source, target in pairs:
        assert parse_by_datetime(source).isoformat() == target
    for n in range(1, 32):
        day = date(2000, 1, n)
        assert {parse_by_datetime(format_date(day, form)) for form in FORMS} == {day}


def test_english_ordinals():
    endings = dict.fromkeys(range(1, 32), "th")
    endings |= {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
    for number, ending in endings.items():
        text = format_date(date(1999, 1, number), "the {ordinal} of {month}")
        assert text == f"the {number}{ending} of January"


def test_no_test_date_occurs_in_training_in_any_form():
    training, test = date_pairs(), unseen_date_pairs()
    dates = {target for _, target in training}
    others = {target for _, target in test}
    assert not dates & others
    assert (len(dates), len(others)) == (len(training), len(test)) == (71_049, 2_000)
    assert len(dates | others) == (date(2099, 12, 31) - date(1900, 1, 1)).days + 1
    assert {target[:4] for target in others} == {str(year) for year in range(1900, 2100)}
    assert training == date_pairs()
