"""What `heedful train` says at its end: commands that can be typed as they stand."""

import shlex

import pytest

from heedful.cli.main import run
from heedful.cli.training import quoted

PROSE = "".join(
    f"Some grey cats sat down slowly on old mats. In {i} they slept.\n" for i in range(80)
)
BROKEN = '火 水 木 $HOME `x` "y" it\'s! \\ 🙂 ' * 90
UNBROKEN = "火水木金土，这里没有空格🙂" * 60
SMALL = ["--width", "8", "--layers", "1", "--heads", "2", "--batch", "2", "--steps", "1",
         "--context", "16", "--device", "cpu"]  # fmt: skip
KINDS = {
    "generate": ["--vocabulary", "300"],
    "fill": ["--preset", "bert", "--vocabulary", "300"],
    "characters": ["--tokenizer", "characters"],
}


@pytest.mark.parametrize(
    ("text", "validation"),
    [(PROSE, "0.3"), (BROKEN, "0"), (UNBROKEN, "0.3")],
    ids=["prose", "no words", "no spaces"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_commands_run_on_words_of_the_text(kind, text, validation, tmp_path, capsys):
    source = tmp_path / "text [red].txt"
    source.write_text(text, "utf-8")
    out = tmp_path / "my [red] run"
    options = [*KINDS[kind], *SMALL, "--validation", validation]
    assert run(["train", str(source), "--out", str(out), *options]) == 0
    said = capsys.readouterr().out
    first, second = (shlex.split(line)[1:] for line in said.splitlines()[-2:])
    assert first[:2] == ["generate" if kind == "characters" else kind, str(out)]
    assert second == ["plot", *first[1:]]
    words = first[2].split()
    assert words.count("[MASK]") == (kind == "fill")
    if text is PROSE and kind == "fill":  # which knows neither lines nor capitals
        assert len(words) > 5
        assert {*words} <= {*text.lower().replace(".", " ").split(), "[MASK]"}
    elif text is PROSE:
        assert first[2] in ("Some grey cats sat", "Some grey cats", "Some grey")
    assert run([*first, *(["--tokens", "2"] if first[0] == "generate" else [])]) == 0
    assert run([*second, "--only", "heads"]) == 0


def test_pairs_are_tried_on_the_last_source(tmp_path, capsys):
    source = tmp_path / "pairs.tsv"
    source.write_text('a "b"\tc\nb $c\t"d"\n' * 5)
    assert run(["train", "--pairs", str(source), "--out", str(tmp_path / "run"), *SMALL]) == 0
    first, second = (shlex.split(line)[1:] for line in capsys.readouterr().out.splitlines()[-2:])
    assert first == ["translate", str(tmp_path / "run"), "b $c"]
    assert second == ["plot", *first[1:]]
    assert run(first) == 0


@pytest.mark.parametrize("text", ["plain words", 'a "b"', "it's", "$a `b` \\c !d", "", "é 火"])
def test_a_shell_reads_a_quoted_text_as_it_is(text):
    assert shlex.split(quoted(text)) == [text]
