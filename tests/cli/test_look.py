"""`heedful look`: what it opens, what it refuses at once, and the file that it writes."""

import shutil
import webbrowser

import pytest
import torch
from typed import misused, refused

import heedful
from heedful.models import GPT, GPTConfig
from heedful.views.explorer import one_file, server
from heedful.views.explorer.wire import unpacked


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording of two layers of three heads on seven tokens, as a file."""
    torch.manual_seed(1)
    model = GPT(GPTConfig(vocabulary=20, context_length=16, width=12, layers=2, heads=3)).eval()
    with heedful.record(model) as recording:
        model(torch.arange(7)[None])
    recording.tokens = [[f"t{n}" for n in range(7)]]
    path = tmp_path_factory.mktemp("recorded") / "first.safetensors"
    recording.save(path)
    return path


def test_a_file_is_written_and_says_what_it_has(recorded, said, tmp_path):
    page = tmp_path / "page.html"
    status, output, _ = said("look", recorded, "--html", page)
    assert status == 0
    first, second = output.splitlines()
    assert first.startswith(f"{page}, 0.")
    assert "with no network" in first
    assert second.startswith("This page computes every weight")
    assert "<title>first · heedful</title>" in page.read_text("utf-8")
    page.write_text("mine")
    refused(said("look", recorded, "--html", page), "is there already", "--overwrite")
    assert page.read_text() == "mine"
    assert said("look", recorded, "--html", page, "--overwrite")[0] == 0
    refused(said("look", "none/here", "a" * 999, "--html", tmp_path), "is a folder", "page.html")
    refused(said("look", "none/here", "a", "--html", tmp_path / "no/a.html"), "No such file")


def test_wrong_usage_says_what_to_type(recorded, said, tmp_path):
    misused(said("look"), "heedful look first.safetensors", '"The import statement"')
    misused(said("look", recorded, "a text"), "have their texts")
    misused(said("look", recorded, "--cut"), "has its text already")
    misused(said("look", recorded, "--limit", "3"), "--limit goes with --html")
    misused(said("look", recorded, "--overwrite"), "--overwrite goes with --html")
    misused(said("look", "model", "two", "texts"), "one text in quotes")
    misused(said("look", recorded, tmp_path), "give recordings")
    misused(said("look", recorded, "--layers", "a"), "list such as")


def test_what_is_no_recording(recorded, said, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("no recording")
    refused(said("look", text), "is no recording")
    refused(said("look", tmp_path / "none.safetensors"), "no file")
    refused(said("look", recorded, tmp_path / "none.safetensors"), "no file")
    refused(said("look", tmp_path, "a text"), "config.json")


def test_some_layers_and_heads(recorded, said, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(one_file, "write", lambda path, texts, *rest, **more: shown.append(texts)
                        or one_file.Written(1, ""))  # fmt: skip
    page = tmp_path / "page.html"
    chosen = ["--layers", "1", "--heads", "0,2"]
    assert said("look", recorded, "--html", page, *chosen)[0] == 0
    [texts] = shown
    [call] = texts.about()[0]["texts"][0]["calls"]
    assert (call["layer"], call["heads"]) == (1, [0, 2])
    refused(said("look", recorded, "--html", page, "--layers", "2"), "layer 2", "0 to 1")


def test_a_model_with_a_text_and_recordings_of_one_name(night, recorded, said, tmp_path):
    page = tmp_path / "page.html"
    assert said("look", night, "night", "--html", page)[0] == 0
    text = tmp_path / "text.txt"
    text.write_text("day")
    assert said("look", night, "--file", text, "--html", page, "--overwrite")[0] == 0
    misused(said("look", night), "--file")
    other = shutil.copy(recorded, tmp_path)
    assert said("look", recorded, other, "--html", page, "--overwrite")[0] == 0
    assert f"{recorded}, {other} · heedful" in page.read_text("utf-8")


def test_a_model_that_continues_texts(night, recorded, said, monkeypatch):
    """With a prompt or without one; what does not fit is refused in a line."""
    served = []
    monkeypatch.setattr(server, "serve", lambda texts, ready, **given: served.append(given))
    for prompt, tokens in ((["night and day"], 3), ([], 1)):
        assert said("look", night, *prompt, "--generate", "--heads", "1")[0] == 0
        assert unpacked(served[-1]["generation"].told())[0]["tokens"] == tokens
    misused(said("look", recorded, "--generate"), "one model")
    misused(said("look", night, "a", "b", "--generate"), "one text")
    misused(said("look", night, "a", "--generate", "--html", "x.html"), "--html", "--generate")
    misused(said("look", night, "a", "--generate", "--second", "b"), "--second")
    refused(said("look", night, "night", "--generate", "--heads", "9"), "head 9")


@pytest.mark.parametrize("opens", [True, False, webbrowser.Error("none")])
def test_the_address_is_printed_whether_or_not_a_browser_opens(recorded, said, monkeypatch, opens):
    def browser(address):
        if isinstance(opens, Exception):
            raise opens
        return opens

    def serve(texts, ready, *, port, model, generation):
        assert model is generation is None
        ready("http://127.0.0.1:1234/?word=w")

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr(webbrowser, "open", browser)
    monkeypatch.setattr(server, "serve", serve)
    status, output, _ = said("look", recorded)
    assert status == 0
    assert output.splitlines()[0] == "http://127.0.0.1:1234/?word=w"
    assert ("ssh -L 1234:127.0.0.1:1234" in output) == (opens is not True)
    assert "Ctrl-C ends it." in output
    assert "No browser" not in said("look", recorded, "--no-browser")[1]
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22")
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail("opened"))
    assert "ssh -L 1234" in said("look", recorded)[1]


def test_ctrl_c_is_how_it_ends(recorded, said, monkeypatch):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "serve", interrupted)
    assert said("look", recorded) == (0, "", "\nended\n")
