"""The end of `heedful train`: commands that run unchanged, losses, and refused settings."""

import re
import shlex

import pytest
from command_checks import arguments_of

from heedful.cli.main import run
from heedful.cli.suggested_commands import beginning, quoted, suggestion
from heedful.pictures import plots, saving
from heedful.train import read_metrics

PROSE = "".join(
    f"Some grey cats sat down slowly on old mats. In {i} they slept.\n" for i in range(80)
)
BROKEN = '火 水 木 $HOME `x` "y" it\'s! \\ 🙂 ' * 90
UNBROKEN = "火水木金土，这里没有空格🙂" * 60
WIDE = "火水木\u3000金土，\u3000这里没有空格🙂\u3000" * 60  # with ideographic spaces
SMALL = ["--width", "8", "--layers", "1", "--heads", "2", "--batch", "2", "--steps", "1",
         "--context-length", "32", "--device", "cpu"]  # fmt: skip
KINDS = {
    "generate": ["--vocabulary", "300"],
    "fill": ["--preset", "bert", "--vocabulary", "300"],
    "characters": ["--tokenizer", "characters"],
}


@pytest.mark.parametrize(
    ("kind", "text", "validation"),
    [
        ("generate", PROSE, "0.3"),
        ("fill", PROSE, "0.3"),
        ("characters", PROSE, "0"),
        ("generate", BROKEN, "0.3"),
        ("fill", UNBROKEN, "0.3"),
        ("characters", WIDE, "0.3"),
    ],
)
def test_the_next_commands_run_on_words_of_the_text(kind, text, validation, tmp_path, capsys):
    source = tmp_path / "text [red].txt"
    source.write_text(text, "utf-8")
    out = tmp_path / "my [red] run"
    options = [*KINDS[kind], *SMALL, "--validation", validation]
    assert run(["train", str(source), "--out", str(out), *options]) == 0
    output = capsys.readouterr().out
    first, second = (arguments_of(line) for line in output.splitlines()[-2:])
    assert first[:2] == ["generate" if kind == "characters" else kind, str(out)]
    assert second == ["plot", *first[1:]]
    words = first[2].split()
    assert words.count("[MASK]") == (kind == "fill")
    if text is PROSE and kind == "fill":  # its tokenizer drops line breaks and capitals
        assert len(words) > 3
        assert {*words} <= {*text.lower().replace(".", " ").split(), "[MASK]"}
    elif text is PROSE:
        assert first[2] in ("Some grey cats sat", "Some grey cats", "Some grey")
    assert run([*first, *(["--tokens", "2"] if first[0] == "generate" else [])]) == 0
    assert run([*second, "--only", "heads"]) == 0


def test_the_next_commands_for_pairs_use_the_last_source(tmp_path, capsys):
    source = tmp_path / "pairs.tsv"
    source.write_text('a "b"\tc\nb $c\t"d"\n' * 5)
    assert run(["train", "--pairs", str(source), "--out", str(tmp_path / "run"), *SMALL]) == 0
    first, second = (arguments_of(line) for line in capsys.readouterr().out.splitlines()[-2:])
    assert first == ["translate", str(tmp_path / "run"), "b $c"]
    assert second == ["plot", *first[1:]]
    assert run(first) == 0


@pytest.fixture
def figures(monkeypatch):
    """The saved figures by the names of their files."""
    saved, save = {}, saving.save

    def save_and_store(figure, path):
        saved[path.name] = figure
        return save(figure, path)

    monkeypatch.setattr(saving, "save", save_and_store)
    monkeypatch.setattr(plots, "save", save_and_store)
    return saved


def test_the_training_loss_is_one_number_in_terminal_picture_and_metrics(tmp_path, capsys, figures):
    source, out = tmp_path / "text.txt", tmp_path / "run"
    source.write_text(PROSE)
    options = [*KINDS["characters"], *SMALL, "--label-smoothing", "0.2", "--save-every", "31"]
    assert run(["train", str(source), "--out", str(out), *options, "--steps", "31"]) == 0
    assert run(["train", "--out", str(out), "--resume", "--steps", "37"]) == 0
    output = capsys.readouterr().out
    assert "with labels smoothed by 0.2" in output.replace("\n        ", " ")
    losses = [line for line in read_metrics(out / "metrics.jsonl") if "loss" in line]
    for step, mean in re.findall(r"step (\d+)/\d+  training loss (\S+)", output):
        assert mean == f"{losses[int(step) - 1]['mean_loss']:.3f}"
    last = sum(line["loss"] for line in losses[-4:]) / 4
    assert f"step 37/37  training loss {last:.3f}" in output
    notes = [text.get_text() for text in figures["loss.png"].axes[0].texts]
    assert f"training {last:.3f}" in notes


@pytest.mark.parametrize("text", ["plain words", 'a "b"', "it's", "$a `b` \\c !d", "-1 a", "é 火"])
def test_a_shell_reads_a_quoted_text_as_it_is(text, tmp_path):
    assert shlex.split(quoted(text)) == [text]
    words = arguments_of(suggestion("generate", tmp_path / "my run", text=text))
    assert words == ["generate", str(tmp_path / "my run"), *["--"] * text.startswith("-"), text]
    assert beginning(f"{text} " * 99).startswith(text)
    assert len(beginning(f"{text} " * 99)) <= 60


def test_files_left_out_of_a_folder_are_reported_once(tmp_path, capsys):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text(PROSE)
    (folder / "cover.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    out = tmp_path / "run"
    assert run(["train", str(folder), "--out", str(out), *KINDS["generate"], *SMALL]) == 0
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert line.startswith(f"skipped binary files in {folder}: cover.png; --include")
    assert str(folder / "a.md") in captured.out.replace("\n        ", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preset", "bert", "--momentum", "0.9"], "--optimizer muon"),
        (["--decay", "cosine", "--fall", "0.3"], "--decay trapezoid"),
        (["--convolution", "0", "--convolution-rate", "0.1"], "--convolution for a GPT"),
        (["--tokenizer", "characters", "--vocabulary", "500"], "bpe or wordpiece"),
        (["--tokenizer", "characters", "--no-compact"], "tiktoken"),
        (["--preset", "bert", "--qk-norm"], "qk_norm"),
        (["--attention-dropout", "0.1"], "attention_dropout"),
        (["--preset", "bert", "--tokenizer", "characters"], "wordpiece"),
        (["--tokenizer", "wordpiece"], "GPT"),
    ],
)
def test_a_setting_without_effect_is_refused(options, words, tmp_path, capsys):
    assert run(["train", "--out", str(tmp_path / "run"), *options]) != 0
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
