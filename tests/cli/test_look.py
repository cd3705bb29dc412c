"""`heedful look`: what it opens, what it refuses at once, and the file that it writes."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import webbrowser

import pytest
import torch
from typed import misused, refused, train

import heedful
from heedful.cli.look import _by_hand, _has_opened
from heedful.models import GPT, GPTConfig
from heedful.views.explorer import hosting, one_file
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A GPT that was trained for a moment."""
    text = "seven green bottles. " * 60
    sizes = ["--width", "12", "--heads", "3", "--layers", "1", "--context-length", "16"]
    return train(tmp_path_factory.mktemp("look"), text, *sizes, "--steps", "1", "--device", "cpu")


def usage(result, *words):
    """Wrong usage, in one line."""
    status, _, error = result
    assert (status, error.count("\n")) == (2, 1)
    for word in words:
        assert word in error


def test_a_file_is_written_and_says_what_it_has(recorded, said, tmp_path):
    page = tmp_path / "page.html"
    status, output, _ = said("look", recorded, "--html", page)
    assert status == 0
    first, second = output.splitlines()
    assert first.startswith(f"{page}, 0.")
    assert "with no network" in first
    assert second.startswith("This page computes every weight")
    assert "<title>first · heedful</title>" in page.read_text("utf-8")


def test_nothing_is_overwritten_unless_asked(recorded, said, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    refused(said("look", recorded, "--html", page), "is there already", "--overwrite")
    assert page.read_text() == "mine"
    assert said("look", recorded, "--html", page, "--overwrite")[0] == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_a_place_that_does_not_fit_is_told_before_anything_is_opened(said, tmp_path):
    refused(said("look", "none/here", "a", "--html", tmp_path), "is a folder", "page.html")
    refused(said("look", "none/here", "a", "--html", tmp_path / "no/a.html"), "no folder")


def test_wrong_usage_says_what_to_type(recorded, said, tmp_path):
    usage(said("look"), "heedful look first.safetensors", '"The import statement"')
    usage(said("look", recorded, "a text"), "has its text already")
    usage(said("look", recorded, "--cut"), "has its text already")
    usage(said("look", recorded, "--limit", "3"), "--limit goes with --html")
    usage(said("look", recorded, "--overwrite"), "--overwrite goes with --html")
    usage(said("look", "model", "two", "texts"), "one text in quotes")
    usage(said("look", recorded, tmp_path), "give recordings, or one model")
    usage(said("look", recorded, "--layers", "a"), "list such as")


def test_what_is_no_recording(recorded, said, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("no recording")
    refused(said("look", text), "is no recording")
    misused(said("look", text, "a text"), "--file")
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


def test_a_model_with_a_text_and_recordings_of_one_name(trained, recorded, said, tmp_path):
    page = tmp_path / "page.html"
    assert said("look", trained, "green", "--html", page)[0] == 0
    text = tmp_path / "text.txt"
    text.write_text("bottles")
    assert said("look", trained, "--file", text, "--html", page, "--overwrite")[0] == 0
    usage(said("look", trained), "--file")
    other = shutil.copy(recorded, tmp_path)
    assert said("look", recorded, other, "--html", page, "--overwrite")[0] == 0
    assert f"{recorded}, {other} · heedful" in page.read_text("utf-8")


def test_a_model_that_continues_texts(trained, recorded, said, monkeypatch):
    """With a prompt or without one; what does not fit is refused in a line."""
    served = []
    monkeypatch.setattr(hosting, "serve", lambda texts, ready, **given: served.append(given))
    for prompt, tokens in ((["green bottles"], 3), ([], 1)):
        assert said("look", trained, *prompt, "--generate", "--heads", "1")[0] == 0
        assert unpacked(served[-1]["generation"].told())[0]["tokens"] == tokens
    usage(said("look", recorded, "--generate"), "one model")
    usage(said("look", trained, "a", "b", "--generate"), "one model")
    usage(said("look", trained, "a", "--generate", "--html", "x.html"), "--html", "--generate")
    usage(said("look", trained, "a", "--generate", "--second", "b"), "--second")
    refused(said("look", trained, "green", "--generate", "--heads", "9"), "head 9")


def test_a_port_that_is_taken(recorded, said):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused(said("look", recorded, "--port", port), f"port {port}", "leave --port out")


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
    for name in ("SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webbrowser, "open", browser)
    monkeypatch.setattr(hosting, "serve", serve)
    status, output, _ = said("look", recorded)
    assert status == 0
    assert output.splitlines()[0] == "http://127.0.0.1:1234/?word=w"
    assert ("No browser was found" in output) == (opens is not True)
    assert "Ctrl-C ends it." in output
    assert "No browser" not in said("look", recorded, "--no-browser")[1]


def test_from_afar_no_browser_is_opened_and_the_way_is_told(monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail("opened"))
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22")
    monkeypatch.setenv("DISPLAY", ":0")
    assert not _has_opened("http://127.0.0.1:1234/?word=w")
    assert "ssh -L 1234:127.0.0.1:1234" in _by_hand("http://127.0.0.1:1234/?word=w")


def test_ctrl_c_is_how_it_ends(recorded):
    running = subprocess.Popen(
        [sys.executable, "-c", "from heedful.cli import main; main()", "look", str(recorded),
         "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    assert re.match(r"http://127\.0\.0\.1:\d+/\?word=\S{20,}", running.stdout.readline())
    assert running.stdout.readline() == "Ctrl-C ends it.\n"
    running.send_signal(signal.SIGINT)
    output, error = running.communicate(timeout=30)
    assert (running.returncode, error) == (0, "\nended\n")
    assert output == ""
