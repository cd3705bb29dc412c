"""What `heedful train` says at its end: commands that can be typed as they stand."""

import re
import shlex

import pytest
from typed import arguments_of, train

from heedful.cli.main import run
from heedful.cli.suggestion import LONGEST, quoted, shortened, suggestion
from heedful.pictures import plots, saving
from heedful.train import read_metrics

PROSE = "".join(
    f"Some grey cats sat down slowly on old mats. In {i} they slept.\n" for i in range(80)
)
BROKEN = '火 水 木 $HOME `x` "y" it\'s! \\ 🙂 ' * 90
UNBROKEN = "火水木金土，这里没有空格🙂" * 60
LINES = "火水木金土，这里没有空格🙂\n" * 60
WIDE = "火水木\u3000金土，\u3000这里没有空格🙂\u3000" * 60  # their space is not that of a keyboard
SMALL = ["--width", "8", "--layers", "1", "--heads", "2", "--batch", "2", "--steps", "1",
         "--context-length", "16", "--device", "cpu"]  # fmt: skip
KINDS = {
    "generate": ["--vocabulary", "300"],
    "fill": ["--preset", "bert", "--vocabulary", "300"],
    "characters": ["--tokenizer", "characters"],
}


@pytest.mark.parametrize(
    ("text", "validation"),
    [(PROSE, "0.3"), (BROKEN, "0"), (UNBROKEN, "0.3"), (LINES, "0.3"), (WIDE, "0.3")],
    ids=["prose", "no words", "no spaces", "lines without spaces", "wide spaces"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_commands_run_on_words_of_the_text(kind, text, validation, tmp_path, capsys):
    source = tmp_path / "text [red].txt"
    source.write_text(text, "utf-8")
    out = tmp_path / "my [red] run"
    options = [*KINDS[kind], *SMALL, "--validation", validation]
    assert run(["train", str(source), "--out", str(out), *options]) == 0
    said = capsys.readouterr().out
    first, second = (arguments_of(line) for line in said.splitlines()[-2:])
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_type_of_the_products_is_said(precision, tmp_path, capsys):
    source = tmp_path / "text.txt"
    source.write_text(PROSE)
    options = ["--tokenizer", "characters", *SMALL, "--precision", precision]
    assert run(["train", str(source), "--out", str(tmp_path / "run"), *options]) == 0
    assert f"cpu, products in {precision}\n" in capsys.readouterr().out


def test_pairs_are_tried_on_the_last_source(tmp_path, capsys):
    source = tmp_path / "pairs.tsv"
    source.write_text('a "b"\tc\nb $c\t"d"\n' * 5)
    assert run(["train", "--pairs", str(source), "--out", str(tmp_path / "run"), *SMALL]) == 0
    first, second = (arguments_of(line) for line in capsys.readouterr().out.splitlines()[-2:])
    assert first == ["translate", str(tmp_path / "run"), "b $c"]
    assert second == ["plot", *first[1:]]
    assert run(first) == 0


def test_a_pair_whose_text_has_no_space_is_tried_on_a_word(tmp_path, capsys):
    source = tmp_path / "pairs.tsv"
    source.write_text("火水\u3000木金\t土\n" * 10, "utf-8")
    options = [*SMALL, "--tokenizer", "characters"]
    assert run(["train", "--pairs", str(source), "--out", str(tmp_path / "run"), *options]) == 0
    first, _ = (arguments_of(line) for line in capsys.readouterr().out.splitlines()[-2:])
    assert first[2] == "木金"
    assert run(first) == 0


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, by the names of their files."""
    saved, save = {}, saving.save

    def keep(figure, path):
        saved[path.name] = figure
        return save(figure, path)

    monkeypatch.setattr(saving, "save", keep)
    monkeypatch.setattr(plots, "save", keep)
    return saved


def test_the_training_loss_is_one_number_in_terminal_picture_and_metrics(tmp_path, capsys, figures):
    source, out = tmp_path / "text.txt", tmp_path / "run"
    source.write_text(PROSE)
    options = [*KINDS["characters"], *SMALL, "--label-smoothing", "0.2", "--save-every", "31"]
    assert run(["train", str(source), "--out", str(out), *options, "--steps", "31"]) == 0
    assert run(["train", "--out", str(out), "--resume", "--steps", "37"]) == 0
    said = capsys.readouterr().out
    assert "against labels smoothed by 0.2" in said.replace("\n        ", " ")
    losses = [line for line in read_metrics(out / "metrics.jsonl") if "loss" in line]
    for step, mean in re.findall(r"step (\d+)/\d+  training loss (\S+)", said):
        assert mean == f"{losses[int(step) - 1]['mean_loss']:.3f}"
    last = sum(line["loss"] for line in losses[-4:]) / 4
    assert f"step 37/37  training loss {last:.3f}" in said
    notes = [text.get_text() for text in figures["loss.png"].axes[0].texts]
    assert f"training {last:.3f}" in notes
    assert notes[0].endswith("\nin training, labels are smoothed by 0.2")


@pytest.mark.parametrize(
    ("positions", "columns", "title"),
    [("rotary", "pair of dimensions", "rotary"), ("learned", "dimension", "learned")],
)
def test_a_picture_of_positions_says_what_its_columns_are(
    positions, columns, title, tmp_path, capsys, figures
):
    source, out = tmp_path / "text.txt", tmp_path / "run"
    source.write_text(PROSE)
    options = [*KINDS["characters"], *SMALL, "--positions", positions]
    assert run(["train", str(source), "--out", str(out), *options]) == 0
    assert run(["plot", str(out), "--only", "positions"]) == 0
    ax = figures["positions.png"].axes[0]
    assert ax.get_xlabel().partition(",")[0] == columns
    assert figures["positions.png"].get_suptitle() == f"{title} positions"


@pytest.mark.parametrize("text", ["plain words", 'a "b"', "it's", "$a `b` \\c !d", "", "é 火"])
def test_a_shell_reads_a_quoted_text_as_it_is(text):
    assert shlex.split(quoted(text)) == [text]


@pytest.mark.parametrize(
    "text", [PROSE, BROKEN, UNBROKEN, "-1 a", "a\tb\r\nc", "\x1b[1mred", "می‌خواهم " * 40]
)
def test_a_suggestion_is_one_short_line_that_a_shell_reads(text, tmp_path):
    some = shortened(text)
    line = suggestion("generate", tmp_path / "my run", text=some)
    assert len(some) <= LONGEST
    assert line.isprintable() or "\u200c" in line
    words = arguments_of(line)
    assert words == ["generate", str(tmp_path / "my run"), *["--"] * some.startswith("-"), some]
    assert " ".join(text.replace("\x1b", " ").split()).startswith(some)


def test_a_long_pair_is_suggested_by_its_beginning(tmp_path, capsys):
    source = tmp_path / "pairs.tsv"
    source.write_text(f"{'so long a source ' * 30}\tc\n" * 5)
    options = [*SMALL, "--context-length", "600", "--tokenizer", "characters"]
    assert run(["train", "--pairs", str(source), "--out", str(tmp_path / "run"), *options]) == 0
    first, second = (arguments_of(line) for line in capsys.readouterr().out.splitlines()[-2:])
    assert first[2] == "so long a source so long a source so long a source so long a"
    assert second[2] == first[2]


def test_what_is_left_out_of_a_folder_is_told_once_with_the_option(tmp_path, capsys):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text(PROSE)
    (folder / "cover.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    out = tmp_path / "run"
    assert run(["train", str(folder), "--out", str(out), *KINDS["generate"], *SMALL]) == 0
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert line.startswith(f"left out of {folder}, as no text: cover.png; --include")
    assert str(folder / "a.md") in said.out.replace("\n        ", "")


def test_a_number_of_tokens_has_its_comma(tmp_path, capsys):
    options = [*SMALL, "--tokenizer", "characters", "--context-length", "1100", "--steps", "0"]
    train(tmp_path, PROSE, *options)
    assert "context 1,100 tokens" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preset", "bert", "--momentum", "0.9"], "momentum = 0.9 with the optimizer adamw"),
        (["--decay", "cosine", "--fall", "0.3"], "add --decay trapezoid"),
        (["--convolution-rate", "0.1"], "without a short convolution"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(options, words, tmp_path, capsys):
    assert run(["train", "--out", str(tmp_path / "run"), *options]) != 0
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
