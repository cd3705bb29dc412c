"""Labels of a sequence: all different, and literal if possible."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.pictures import labels
from heedful.pictures.labels import borders, columns, names, patches, position_labels


@pytest.fixture
def only_dejavu(monkeypatch):
    monkeypatch.setattr(labels, "families", lambda: ("DejaVu Sans",))


@given(st.lists(st.text(max_size=14), min_size=1, max_size=20))
@example(["the", "the₀", "the"])
@example(["\ud800", "\ud801", "注", "意", ""])
@example(["internationalisation", "internationalism", "internation…"])
@settings(max_examples=40)
def test_labels_are_distinct_and_short(tokens):
    labels_ = names(tokens)
    assert len(set(labels_)) == len(tokens)
    assert all(1 <= columns(name) <= 12 for name in labels_)


def test_only_repeated_tokens_get_their_position(only_dejavu):
    tokens = ["the", " cat", "the", "注意", "a", "注意", "मन", "internationalise",
              "internationalism"]  # fmt: skip
    assert names(tokens) == [
        "the₀", "·cat", "the₂", "□□₃", "a", "□□₅", "□□₆", "internatio…₇", "internatio…₈",
    ]  # fmt: skip


def test_kinds_of_white_space_have_different_signs():
    spaces = [" ", "\n", "\r", "\t", "\v", "\f", "\u00a0", "\u3000", "\u2009", "\u200b", ""]
    assert len({name.rstrip("₀₁₂₃₄₅₆₇₈₉") for name in names(spaces)}) == len(spaces)


@pytest.mark.parametrize(
    ("tokens", "starts"),
    [
        ("[CLS] a [SEP] b c [SEP]", [3]),
        ("[CLS] a [SEP] [PAD] [PAD]", []),
        ("a b <|endoftext|> c", [3]),
        ("", []),
    ],
)
def test_a_text_begins_after_a_separator(tokens, starts):
    assert borders(tokens.split()) == starts


def test_patches_are_labelled_by_row_and_column():
    assert patches(2, 3)[5] == "patch 1,2"
    assert patches(2, 2, 2)[:3] == ["special 0", "special 1", "patch 0,0"]
    assert position_labels(3, 1000) == ["0", "1,000", "2,000"]
