"""Texts of any number and length, shared out among processes: nothing twice, nothing missing."""

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
from heedful.text import BPETokenizer, CharacterTokenizer, FramedTokenizer

PAIRS = FramedTokenizer(BPETokenizer.train(["the cat sat on the mat "] * 3, 262))
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
    return [one.inputs["ids"][0].tolist() for one in contexts]


def test_a_gpt_reads_every_token_once_in_full_contexts(gpt):
    found = ids_of(gpt.contexts(LONG))
    assert [*chain(*found)] == LETTERS.encode(LONG)
    assert [len(ids) for ids in found] == [13, 13, 13, 9]
    assert [len(ids) for ids in ids_of(gpt.contexts(LONG, 9))] == [9] * 5 + [3]
    assert gpt.contexts("") == []
    [whole] = gpt.contexts("a bad cab")
    assert whole.inputs["ids"].equal(gpt.read("a bad cab").inputs["ids"])


def test_what_stands_before_a_text_stands_before_each_context(gpt, monkeypatch):
    monkeypatch.setattr(CharacterTokenizer, "first", (7, 7))
    found = ids_of(gpt.contexts(LONG, 5))
    assert all(ids[:2] == [7, 7] for ids in found)
    assert [*chain(*(ids[2:] for ids in found))] == LETTERS.encode(LONG)


@pytest.mark.parametrize("tokenizer", [WORDS, PAIRS], ids=["words", "pairs"])
def test_each_context_of_a_bert_is_framed(tokenizer):
    bert, text = opened(LoadedBert, tokenizer), "the cat sat on the mat " * 4
    frame = tokenizer.inputs("").ids
    found = bert.contexts(text, 8)
    assert len(found) > 2
    inside = []
    for one in found:
        ids = one.inputs["ids"][0].tolist()
        assert len(ids) == 8 or one is found[-1]
        assert one.inputs["segments"].shape == (1, len(ids))
        if frame:
            assert [ids[0], ids[-1]] == frame
            ids = ids[1:-1]
        inside += ids
    assert inside == tokenizer.encode(text)
    [short], read = bert.contexts("the cat"), bert.read("the cat")
    assert all(short.inputs[name].equal(read.inputs[name]) for name in ("ids", "segments"))
    assert short.tokens == read.tokens
    assert bert.contexts("") == []


def test_an_encoder_decoder_translates_each_context(seq2seq):
    text = "gfed cab bad faded"
    found = seq2seq.contexts(text)
    sources = [one.inputs["source"][0].tolist() for one in found]
    assert [len(source) for source in sources] == [13, 7]
    assert all(source[-1] == seq2seq.model.config.end for source in sources)
    assert [id for source in sources for id in source[:-1]] == LETTERS.encode(text)
    first = seq2seq.read(text[:12])
    assert all(found[0].inputs[name].equal(first.inputs[name]) for name in ("source", "target"))


def test_a_model_of_transformers_has_the_contexts_of_ours(bert, monkeypatch):
    transformers = pytest.importorskip("transformers")
    text = "the cat sat on the mat " * 4
    tokenizer = transformers.BertTokenizerFast(tokenizer_object=WORDS._library)
    config = transformers.BertConfig(
        vocab_size=WORDS.size, hidden_size=12, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=8, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    theirs = LoadedTransformers(transformers.BertModel(config).eval(), tokenizer, Path())
    for most in (None, 8):
        found = theirs.contexts(text, most)
        assert [one.inputs["input_ids"][0].tolist() for one in found] == ids_of(
            bert.contexts(text, most)
        )
        for one in found:
            assert {tensor.shape for tensor in one.inputs.values()} == {(1, len(one.tokens))}
    assert theirs.contexts("") == []
    assert len(theirs.recorded(theirs.contexts(text)[0])) == 1
    with pytest.raises(ArgumentError, match="contexts of 14 tokens; expected at most 13"):
        theirs.contexts(text, 14)
    monkeypatch.setattr(LoadedTransformers, "context_length", None)
    [whole] = theirs.contexts(text)  # where nothing limits it
    assert whole.tokens == theirs.read(text).tokens


# Sharing out


class Played(Processes):
    """One of several processes that run one after another, the first one last."""

    def __init__(self, rank, found):
        super().__init__(rank, len(found))
        self.found = found

    def announced_of(self, do):
        return do()

    def together(self, timeout):
        return nullcontext()

    def each(self, own):
        self.found[self.rank] = own
        return self.found if self.is_first else [own]


def shared(count, opened, names, **options):
    """What is found by so many processes."""
    parts = [None] * count
    for rank in reversed(range(count)):
        found = survey(opened, names, HeadTotals, processes=Played(rank, parts), **options)
    return found


@pytest.fixture
def in_small_parts(monkeypatch):
    monkeypatch.setattr(head_survey, "PIECE", 20)


def test_any_number_of_processes_finds_the_same_to_the_bit(gpt, folder, in_small_parts):
    alone = survey(gpt, [folder], HeadTotals)
    assert (alone.texts, alone.left_out) == (4, [])
    assert alone.tokens == sum(len(path.read_text()) for path in folder.rglob("*.txt"))
    for count in (2, 3, 11):
        found = shared(count, gpt, [folder])
        assert found.found.heads() == alone.found.heads()
        assert (found.texts, found.contexts, found.tokens) == (4, alone.contexts, alone.tokens)


def test_it_is_what_the_contexts_give_one_by_one(gpt, folder):
    by_hand = HeadTotals()
    paths = sorted(folder.rglob("*.txt"), key=lambda path: path.relative_to(folder))
    for number, path in enumerate(paths):
        for i in range(0, len(path.read_text()), CONTEXT):
            by_hand.add(gpt.record(path.read_text()[i : i + CONTEXT]), (number, i))
    found = survey(gpt, [folder], HeadTotals)
    assert found.found.heads() == by_hand.heads()
    assert found.contexts == 1 + 4 + 2 + 1


def test_a_text_of_more_pieces_than_its_size_tells_is_read_whole(gpt, tmp_path, in_small_parts):
    """A word and its space are twelve letters: of 20 a piece has one."""
    text = "abcdefgabcd " * 5
    (tmp_path / "long.txt").write_text(text)
    pieces = [*head_survey.FileSource((str(tmp_path / "long.txt"),)).pieces(20)]
    assert len(pieces) > -(-len(text) // 20)
    for count in (1, 3):
        found = shared(count, gpt, [tmp_path])
        assert (found.contexts, found.tokens) == (len(pieces), len(text))


def test_no_recording_is_kept(gpt, folder):
    alive = []

    class Watching(HeadTotals):
        def add(self, recording, *rest):
            assert not [one for one in alive if one() is not None]
            alive.append(weakref.ref(recording))
            super().add(recording, *rest)

    found = survey(gpt, [folder], Watching)
    assert found.contexts == len(alive) == 8


def test_a_file_that_is_named_twice_is_read_once(gpt, folder):
    once = survey(gpt, [folder / "b.txt"], HeadTotals)
    twice = survey(gpt, [folder, folder / "b.txt"], HeadTotals, include="b*")
    assert twice.texts == 1
    assert twice.found.heads() == once.found.heads()


# What goes wrong


def test_a_text_that_fails_is_named_and_the_others_are_read(gpt, folder, forbid):
    good = survey(gpt, [folder], HeadTotals)
    (folder / "b0.txt").write_text("")
    (folder / "b1.txt").write_text("a")
    (folder / "b2.txt").write_text("a zebra")
    (folder / "b3.txt").write_bytes(b"a bad \xff cab")
    (folder / "b4.txt").write_text("never read")
    forbid(folder / "b4.txt")
    for count in (1, 3):
        found = shared(count, gpt, [folder], include="*.txt")
        assert found.found.heads() == good.found.heads()
        assert (found.texts, found.tokens) == (good.texts, good.tokens)
        words = ["is empty", "has one token", "'z'", "0xff", "Permission denied"]
        assert [Path(one.path).name for one in found.left_out] == [
            f"b{i}.txt" for i in range(len(words))
        ]
        for one, word in zip(found.left_out, words, strict=True):
            assert word in str(one)
            assert one.path in str(one)
            assert "\n" not in str(one)


def test_of_a_long_text_the_parts_that_fail_are_named(gpt, tmp_path, in_small_parts):
    path = tmp_path / "long.txt"
    path.write_text("a bad cab and a bad cab " * 3)  # n is no letter of the tokenizer's
    text = path.read_text()
    pieces = [at for at, piece in enumerate(head_survey.FileSource((str(path),)).pieces(20))
              if "n" in piece]  # fmt: skip
    for count in (1, 2):
        found = shared(count, gpt, [path])
        assert [one.part - 1 for one in found.left_out] == pieces
        assert {one.parts for one in found.left_out} == {-(-len(text) // 20)}
        assert str(found.left_out[0]).startswith(f"{path}, part {pieces[0] + 1} of 4: ")
        assert 0 < found.tokens < len(text)
    path.write_bytes(b"a bad cab a bad cab a \xff cab " * 2)
    alone, two = shared(1, gpt, [path]), shared(2, gpt, [path])
    assert [left.part for left in alone.left_out] == [1]  # a block is decoded as one
    assert (two.left_out, two.tokens) == (alone.left_out, alone.tokens)


def test_what_fails_halfway_is_not_taken_in_by_half(gpt, folder, monkeypatch):
    """The third context of b.txt fails: its first two are not counted either."""
    contexts, record = [], LoadedGPT.recorded

    def recorded(self, given):
        contexts.append(given)
        if len(contexts) == 4:
            raise RunError("no luck")
        return record(self, given)

    monkeypatch.setattr(LoadedGPT, "recorded", recorded)
    found = survey(gpt, [folder], HeadTotals)
    assert [str(one) for one in found.left_out] == [f"{folder / 'b.txt'}: no luck"]
    monkeypatch.undo()
    rest = [folder / name for name in ("a.txt", "c", "e.txt")]
    assert found.found.heads() == survey(gpt, rest, HeadTotals).found.heads()


def test_an_error_that_nobody_expects_names_its_text(gpt, folder, monkeypatch):
    def recorded(self, given):
        raise RuntimeError("allocate memory:\n too much")

    monkeypatch.setattr(LoadedGPT, "recorded", recorded)
    with pytest.raises(RunError, match=r"a.txt: unexpected RuntimeError: allocate memory: too"):
        survey(gpt, [folder], HeadTotals)
