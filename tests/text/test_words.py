import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import TextError
from heedful.text.words import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Your journey starts with one step", ["Your", "journey", "starts", "with", "one", "step"]),
        ("Attention, please!", ["Attention", ",", "please", "!"]),
        ("rock'n'roll 'quoted' a-b -", ["rock'n'roll", "'", "quoted", "'", "a-b", "-"]),
        ("10,000 or 3.14.", ["10,000", "or", "3.14", "."]),
        ("注意力！", ["注", "意", "力", "！"]),
        ("أحب القهوة،", ["أحب", "القهوة", "،"]),
        ("مَرْحَبًا", ["مَرْحَبًا"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("👩‍🚀👍🏽🇨🇭🇩🇪1️⃣", ["👩‍🚀", "👍🏽", "🇨🇭", "🇩🇪", "1️⃣"]),
        ("cafe\u0301", ["cafe\u0301"]),
        ("__init__ x__y _", ["__init__", "x__y", "_"]),
        ("テスト", ["テ", "ス", "ト"]),
    ],
)
def test_words_and_signs_are_split(text, expected):
    assert words(text) == expected


@given(st.text() | st.sampled_from([" \n\t", "a\udcff"]))
def test_nothing_but_whitespace_is_lost(text):
    without_spaces = "".join(text.split())
    if without_spaces and not any("\ud800" <= char <= "\udfff" for char in without_spaces):
        assert "".join(words(text)) == without_spaces
    else:
        with pytest.raises(TextError):
            words(text)
