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
from heedful.text.example_dates import FORMS, WEEKDAYS, written
from heedful.text.token_file import write_ids

PAIRS = [Pair("good night", "gute Nacht"), Pair("naïve café", "火 🙂"), Pair("a b", "c")] * 4
CHARACTERS = TokenizerChoice("characters")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\tb\nno tab here\n", "line 2 of .* no pair"),
        (b"a\tb\n\nc\td\n", "line 2 of .* no pair"),
        (b"a\tb\tlicence\n", "line 1 of .* no pair"),
        (b"a\tb\nc\td\n \te\n", "line 3 of .* no pair"),
        (b"a\t\n", "line 1 of .* no pair"),
    ],
)
def test_lines_that_are_no_pairs_are_refused_with_their_number(content, words, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(TextError, match=words):
        read_pairs(path)


def test_line_endings_and_a_mark_at_the_start_are_no_text(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes("\ufeffgood night\tgute Nacht\r\n a b \tc\u2028d".encode())
    assert read_pairs(path) == [("good night", "gute Nacht"), ("a b", "c\u2028d")]


@pytest.mark.parametrize("kind", ["characters", "bpe", "cl100k_base"])
def test_ids_give_the_texts_back(kind, tmp_path, request, monkeypatch):
    if kind == "cl100k_base":
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(request.getfixturevalue("data")))
    choice = TokenizerChoice(kind, vocabulary=300)
    tokenizer, file = prepare_pairs(PAIRS, choice, tmp_path / "p.npy", longest=40, validation=0.25)
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
    tokenizer, file = prepare_pairs(pairs, CHARACTERS, path, longest=10_000, validation=validation)
    again = PairFile(path, tokenizer.size + 1, validation)
    read = [split[i] for split in (again.train, again.validation) for i in range(len(split))]
    assert [tuple(tokenizer.decode(side[:-1]) for side in pair) for pair in read] == pairs
    assert len(file.train) == int(len(pairs) * (1 - validation))


def test_a_text_that_is_too_long_is_refused_with_its_line(tmp_path):
    with pytest.raises(TextError, match=r"source of line 1 has 11 tokens.*--context-length 11"):
        prepare_pairs(PAIRS, CHARACTERS, tmp_path / "p.npy", longest=10)
    pairs = [Pair("ab", "cd"), Pair("a", "b" * 5), Pair("a" * 9, "b")]
    with pytest.raises(TextError, match=r"target of line 2 has 6 tokens.*--context-length 10"):
        prepare_pairs(pairs, CHARACTERS, tmp_path / "p.npy", longest=5)
    assert not list(tmp_path.iterdir())
    prepare_pairs(pairs, CHARACTERS, tmp_path / "p.npy", longest=10)


def test_files_that_hold_no_pairs_are_refused(tmp_path):
    for ids in ([1, 2, 3], [1, 9], [1, 9, 2, 9, 3], [1, 9, 2, 9, 3, 9]):
        with (tmp_path / "p.npy").open("w+b") as file:
            write_ids(file, [np.array(ids)], np.dtype(np.uint16))
        with pytest.raises(RunError, match="no pairs"):
            PairFile(tmp_path / "p.npy", end=9)


def read_by_datetime(text):
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


def test_written_dates_are_what_the_standard_library_reads():
    pairs = [*date_pairs()[::40], *unseen_date_pairs()]
    for source, target in pairs:
        assert read_by_datetime(source).isoformat() == target
    for n in range(1, 32):
        day = date(2000, 1, n)
        assert {read_by_datetime(written(day, form)) for form in FORMS} == {day}


def test_english_ordinals():
    endings = dict.fromkeys(range(1, 32), "th")
    endings |= {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
    for number, ending in endings.items():
        text = written(date(1999, 1, number), "the {ordinal} of {month}")
        assert text == f"the {number}{ending} of January"


def test_no_unseen_date_stands_in_training_in_any_form():
    seen, unseen = date_pairs(), unseen_date_pairs()
    dates = {target for _, target in seen}
    others = {target for _, target in unseen}
    assert not dates & others
    assert (len(dates), len(others)) == (len(seen), len(unseen)) == (71_049, 2_000)
    assert len(dates | others) == (date(2099, 12, 31) - date(1900, 1, 1)).days + 1
    assert {target[:4] for target in others} == {str(year) for year in range(1900, 2100)}
    assert seen == date_pairs()
