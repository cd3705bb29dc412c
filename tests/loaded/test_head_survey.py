"""Surveys of texts of any number and length, divided among processes without gaps or overlap."""

import weakref
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import pytest
from small_models import CONTEXT, LETTERS, WORDS, opened

from heedful.errors import ArgumentError, RunError
from heedful.loaded import LoadedBert, LoadedGPT, LoadedTransformers, head_survey, survey
from heedful.processes import Processes
from heedful.recording import HeadTotals
from heedful.text import BPETokenizer, CharacterTokenizer, RobertaTokenizer

PAIRS = RobertaTokenizer(BPETokenizer.train(["the cat sat on the mat "] * 3, 262))
LONG = "a bad cab, a faded badge ".replace(",", "") * 2


@pytest.fixture
def folder(tmp_path):
    for name, text in {"a": "a bad cab", "b": LONG, "c/d": "fed a cab " * 2, "e": "bb"}.items():
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


# Contexts


def ids_of(contexts):
    return [each.inputs["ids"][0].tolist() for each in contexts]


def test_a_gpt_reads_every_token_once_in_full_contexts(gpt):
    contexts = ids_of(gpt.contexts(LONG))
    assert [*chain(*contexts)] == LETTERS.encode(LONG)
    assert [len(ids) for ids in contexts] == [13, 13, 13, 9]
    assert [len(ids) for ids in ids_of(gpt.contexts(LONG, 9))] == [9] * 5 + [3]
    assert gpt.contexts("") == []
    [context] = gpt.contexts("a bad cab")
    assert context.inputs["ids"].equal(gpt.read("a bad cab").inputs["ids"])


def test_tokens_before_a_text_are_before_each_context(gpt, monkeypatch):
    monkeypatch.setattr(CharacterTokenizer, "prefix_ids", (7, 7))
    contexts = ids_of(gpt.contexts(LONG, 5))
    assert all(ids[:2] == [7, 7] for ids in contexts)
    assert [*chain(*(ids[2:] for ids in contexts))] == LETTERS.encode(LONG)


@pytest.mark.parametrize("tokenizer", [WORDS, PAIRS], ids=["words", "pairs"])
def test_each_context_of_a_bert_has_special_tokens(tokenizer):
    bert, text = opened(LoadedBert, tokenizer), "the cat sat on the mat " * 4
    special = tokenizer.inputs("").ids
    contexts = bert.contexts(text, 8)
    assert len(contexts) > 2
    inside = []
    for context in contexts:
        ids = context.inputs["ids"][0].tolist()
        assert len(ids) == 8 or context is contexts[-1]
        assert context.inputs["segments"].shape == (1, len(ids))
        if special:
            assert [ids[0], ids[-1]] == special
            ids = ids[1:-1]
        inside += ids
    assert inside == tokenizer.encode(text)
    [short], read = bert.contexts("the cat"), bert.read("the cat")
    assert all(short.inputs[name].equal(read.inputs[name]) for name in ("ids", "segments"))
    assert short.tokens == read.tokens
    assert bert.contexts("") == []


def test_an_encoder_decoder_translates_each_context(seq2seq):
    text = "gfed cab bad faded"
    contexts = seq2seq.contexts(text)
    sources = [context.inputs["source"][0].tolist() for context in contexts]
    assert [len(source) for source in sources] == [13, 7]
    assert all(source[-1] == seq2seq.model.config.end for source in sources)
    assert [id for source in sources for id in source[:-1]] == LETTERS.encode(text)
    first = seq2seq.read(text[:12])
    assert all(contexts[0].inputs[name].equal(first.inputs[name]) for name in ("source", "target"))


def test_a_model_of_transformers_has_the_contexts_of_ours(bert, monkeypatch):
    transformers = pytest.importorskip("transformers")
    text = "the cat sat on the mat " * 4
    tokenizer = transformers.BertTokenizerFast(tokenizer_object=WORDS._library)
    config = transformers.BertConfig(
        vocab_size=WORDS.size, hidden_size=12, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=8, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    loaded = LoadedTransformers(transformers.BertModel(config).eval(), tokenizer, Path())
    for max_tokens in (None, 8):
        contexts = loaded.contexts(text, max_tokens)
        assert [each.inputs["input_ids"][0].tolist() for each in contexts] == ids_of(
            bert.contexts(text, max_tokens)
        )
        for context in contexts:
            assert {t.shape for t in context.inputs.values()} == {(1, len(context.tokens))}
    assert loaded.contexts("") == []
    assert len(loaded.record_inputs(loaded.contexts(text)[0])) == 1
    with pytest.raises(ArgumentError, match="contexts of 14 tokens; expected at most 13"):
        loaded.contexts(text, 14)
    monkeypatch.setattr(LoadedTransformers, "context_length", None)
    [context] = loaded.contexts(text)  # without a limit
    assert context.tokens == loaded.read(text).tokens


# Several processes


class SequentialProcesses(Processes):
    """One of several processes that run one after another, the first process last."""

    def __init__(self, rank, results):
        super().__init__(rank, len(results))
        self.results = results

    def compute_on_first(self, do):
        return do()

    def process_group(self, timeout):
        return nullcontext()

    def all_gather(self, value):
        self.results[self.rank] = value
        return self.results if self.is_first else [value]


def survey_in_processes(count, opened, names, **options):
    """Return the survey of `count` processes."""
    parts = [None] * count
    for rank in reversed(range(count)):
        result = survey(
            opened, names, HeadTotals, processes=SequentialProcesses(rank, parts), **options
        )
    return result


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(head_survey, "PIECE", 20)


def test_any_number_of_processes_has_the_same_results_to_the_bit(gpt, folder, small_pieces):
    alone = survey(gpt, [folder], HeadTotals)
    assert (alone.texts, alone.left_out) == (4, [])
    assert alone.tokens == sum(len(path.read_text()) for path in folder.rglob("*.txt"))
    for count in (2, 3, 11):
        result = survey_in_processes(count, gpt, [folder])
        assert result.found.heads() == alone.found.heads()
        assert (result.texts, result.contexts, result.tokens) == (4, alone.contexts, alone.tokens)


def test_results_are_those_of_contexts_recorded_separately(gpt, folder):
    by_hand = HeadTotals()
    paths = sorted(folder.rglob("*.txt"), key=lambda path: path.relative_to(folder))
    for number, path in enumerate(paths):
        for i in range(0, len(path.read_text()), CONTEXT):
            by_hand.add(gpt.record(path.read_text()[i : i + CONTEXT]), (number, i))
    result = survey(gpt, [folder], HeadTotals)
    assert result.found.heads() == by_hand.heads()
    assert result.contexts == 1 + 4 + 2 + 1


def test_a_text_of_more_pieces_than_estimated_is_read_completely(gpt, tmp_path, small_pieces):
    """A word and its space have twelve characters, so a piece of 20 has one word."""
    text = "abcdefgabcd " * 5
    (tmp_path / "long.txt").write_text(text)
    pieces = [*head_survey.FileSource((str(tmp_path / "long.txt"),)).pieces(20)]
    assert len(pieces) > -(-len(text) // 20)
    for count in (1, 3):
        result = survey_in_processes(count, gpt, [tmp_path])
        assert (result.contexts, result.tokens) == (len(pieces), len(text))


def test_no_recording_is_kept(gpt, folder):
    alive = []

    class TrackingTotals(HeadTotals):
        def add(self, recording, *rest):
            assert not [ref for ref in alive if ref() is not None]
            alive.append(weakref.ref(recording))
            super().add(recording, *rest)

    result = survey(gpt, [folder], TrackingTotals)
    assert result.contexts == len(alive) == 8


def test_a_file_that_is_named_twice_is_read_once(gpt, folder):
    single = survey(gpt, [folder / "b.txt"], HeadTotals)
    twice = survey(gpt, [folder, folder / "b.txt"], HeadTotals, include="b*")
    assert twice.texts == 1
    assert twice.found.heads() == single.found.heads()


# Errors


def test_a_text_that_fails_is_named_and_the_others_are_read(gpt, folder, forbid):
    good = survey(gpt, [folder], HeadTotals)
    (folder / "b0.txt").write_text("")
    (folder / "b1.txt").write_text("a")
    (folder / "b2.txt").write_text("a zebra")
    (folder / "b3.txt").write_bytes(b"a bad \xff cab")
    (folder / "b4.txt").write_text("never read")
    forbid(folder / "b4.txt")
    for count in (1, 3):
        result = survey_in_processes(count, gpt, [folder], include="*.txt")
        assert result.found.heads() == good.found.heads()
        assert (result.texts, result.tokens) == (good.texts, good.tokens)
        words = ["is empty", "has one token", "'z'", "0xff", "Permission denied"]
        assert [Path(part.path).name for part in result.left_out] == [
            f"b{i}.txt" for i in range(len(words))
        ]
        for part, word in zip(result.left_out, words, strict=True):
            assert word in str(part)
            assert part.path in str(part)
            assert "\n" not in str(part)


def test_of_a_long_text_the_parts_that_fail_are_named(gpt, tmp_path, small_pieces):
    path = tmp_path / "long.txt"
    path.write_text("a bad cab and a bad cab " * 3)  # n is not in the vocabulary
    text = path.read_text()
    pieces = [n for n, piece in enumerate(head_survey.FileSource((str(path),)).pieces(20))
              if "n" in piece]  # fmt: skip
    for count in (1, 2):
        result = survey_in_processes(count, gpt, [path])
        assert [left_out.part - 1 for left_out in result.left_out] == pieces
        assert {left_out.parts for left_out in result.left_out} == {-(-len(text) // 20)}
        assert str(result.left_out[0]).startswith(f"{path}, part {pieces[0] + 1} of 4: ")
        assert 0 < result.tokens < len(text)
    path.write_bytes(b"a bad cab a bad cab a \xff cab " * 2)
    alone, two = survey_in_processes(1, gpt, [path]), survey_in_processes(2, gpt, [path])
    assert [part.part for part in alone.left_out] == [1]  # a block is decoded as one
    assert (two.left_out, two.tokens) == (alone.left_out, alone.tokens)


def test_a_text_that_fails_halfway_is_left_out_completely(gpt, folder, monkeypatch):
    """The third context of b.txt fails: its first two are not counted either."""
    contexts, record = [], LoadedGPT.record_inputs

    def record_inputs(self, inputs):
        contexts.append(inputs)
        if len(contexts) == 4:
            raise RunError("no luck")
        return record(self, inputs)

    monkeypatch.setattr(LoadedGPT, "record_inputs", record_inputs)
    result = survey(gpt, [folder], HeadTotals)
    assert [str(part) for part in result.left_out] == [f"{folder / 'b.txt'}: no luck"]
    monkeypatch.undo()
    rest = [folder / name for name in ("a.txt", "c", "e.txt")]
    assert result.found.heads() == survey(gpt, rest, HeadTotals).found.heads()


def test_an_unexpected_error_names_its_text(gpt, folder, monkeypatch):
    def record_inputs(self, inputs):
        raise RuntimeError("allocate memory:\n too much")

    monkeypatch.setattr(LoadedGPT, "record_inputs", record_inputs)
    with pytest.raises(RunError, match=r"a.txt: unexpected RuntimeError: allocate memory: too"):
        survey(gpt, [folder], HeadTotals)
