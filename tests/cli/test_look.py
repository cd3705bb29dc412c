"""`heedful look`: its sources, its errors, its file and its server."""

import json
import os
import shutil
import stat
import subprocess
import sys
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
import torch
from command_checks import misused, refused

import heedful
from heedful.models import GPT, GPTConfig
from heedful.views.explorer import one_file, server
from heedful.views.explorer.handlers import Handlers
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


def test_a_page_is_written_and_its_contents_are_reported(recorded, cli, tmp_path):
    page = tmp_path / "page.html"
    status, output, _ = cli("look", recorded, "--html", page)
    assert status == 0
    first, second = output.splitlines()
    assert first.startswith(f"{page}, 0.")
    assert "with no network" in first
    assert second.startswith("This page computes every weight")
    assert "<title>first · heedful</title>" in page.read_text("utf-8")
    page.write_text("mine")
    refused(cli("look", recorded, "--html", page), "already exists", "--overwrite")
    assert page.read_text() == "mine"
    assert cli("look", recorded, "--html", page, "--overwrite")[0] == 0
    refused(cli("look", "none/here", "a" * 999, "--html", tmp_path), "is a folder", "name of")
    refused(cli("look", "none/here", "a", "--html", tmp_path / "no/a.html"), "No such file")


def test_wrong_usage_suggests_a_command(recorded, cli, tmp_path):
    misused(cli("look"), "heedful look first.safetensors", '"The import statement"')
    misused(cli("look", recorded, "a text"), "without a text")
    misused(cli("look", recorded, "--cut"), "whose text is fixed")
    misused(cli("look", recorded, "--limit", "3"), "--limit needs --html")
    misused(cli("look", recorded, "--overwrite"), "--overwrite needs --html")
    refused(cli("look", "model", "two", "texts"), "model")
    misused(cli("look", recorded, tmp_path), "give recordings")
    (tmp_path / "config.json").write_text("{}")
    misused(cli("look", "model", tmp_path), "the text is missing")
    misused(cli("look", recorded, recorded), "twice")
    misused(cli("look", recorded, "--layers", "a"), "list such as")


def test_files_that_are_not_recordings_are_refused(recorded, cli, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("no recording")
    refused(cli("look", text), "is not a recording")
    refused(cli("look", tmp_path / "none.safetensors"), "no file")
    refused(cli("look", recorded, tmp_path / "none.safetensors"), "no file")
    refused(cli("look", tmp_path, "a text"), "config.json")


def test_some_layers_and_heads(recorded, cli, tmp_path, monkeypatch):
    pages = []
    monkeypatch.setattr(one_file, "write", lambda path, texts, *rest, **more: pages.append(texts)
                        or (1, ""))  # fmt: skip
    page = tmp_path / "page.html"
    selection = ["--layers", "1", "--heads", "0,2"]
    assert cli("look", recorded, "--html", page, *selection)[0] == 0
    [texts] = pages
    [call] = texts.about()[0]["texts"][0]["calls"]
    assert (call["layer"], call["heads"]) == (1, [0, 2])
    refused(cli("look", recorded, "--html", page, "--layers", "2"), "layer 2", "0 to 1")


def test_a_model_with_a_text_and_recordings_of_one_name(night, recorded, cli, tmp_path):
    page = tmp_path / "page.html"
    assert cli("look", night, "night", "--html", page)[0] == 0
    text = tmp_path / "text.txt"
    text.write_text("day")
    assert cli("look", night, "--file", text, "--html", page, "--overwrite")[0] == 0
    misused(cli("look", night), "--file")
    other = shutil.copy(recorded, tmp_path)
    assert cli("look", recorded, other, "--html", page, "--overwrite")[0] == 0
    assert f"{recorded}, {other} · heedful" in page.read_text("utf-8")


def test_two_models_on_one_text(night, cli, monkeypatch, tmp_path):
    """Each model reads the text, and texts that are typed into the page."""
    served = []
    monkeypatch.setattr(
        server, "serve", lambda texts, ready, **options: served.append((texts, options))
    )
    other = shutil.copytree(night, tmp_path / "other")
    assert cli("look", night, other, "night")[0] == 0
    [(texts, options)] = served
    assert texts.names == list(options["models"]) == [Path(night).name, "other"]
    first, second = (texts.call(n, 0, 0) for n in (0, 1))
    torch.testing.assert_close(first.weights(), second.weights())
    explorer = server.Explorer(Handlers(texts), 1, options["models"])
    explorer._add_recording(["day"])
    assert texts.names[2:] == [f"day · {name}" for name in options["models"]]
    assert texts.about()[2]["typed"] == ["day"]
    explorer.worker.shutdown()


def test_a_model_that_continues_texts(night, recorded, cli, monkeypatch):
    """--generate works with and without a prompt, and refuses options that do not fit."""
    served = []
    monkeypatch.setattr(server, "serve", lambda texts, ready, **options: served.append(options))
    for prompt, tokens in ((["night and day"], 3), ([], 1)):
        assert cli("look", night, *prompt, "--generate", "--heads", "1")[0] == 0
        assert unpacked(served[-1]["generation"].status())[0]["tokens"] == tokens
    misused(cli("look", recorded, "--generate"), "needs one model")
    misused(cli("look", night, "a", "b", "--generate"), "one model")
    misused(cli("look", night, "a", "--generate", "--html", "x.html"), "--html", "--generate")
    misused(cli("look", night, "a", "--generate", "--second", "b"), "--second")
    refused(cli("look", night, "night", "--generate", "--heads", "9"), "head 9")


def test_a_file_of_ablate_is_shown_or_refused(recorded, cli, tmp_path):
    page, path = tmp_path / "page.html", tmp_path / "heads.json"
    heads = [{"module": f"model.blocks.{n}.attend", "head": 2, "delta": n} for n in range(3)]
    cases = {
        json.dumps({"heads": heads[:2]}): "", json.dumps({"model": 1}): "is not an ablation",
        json.dumps({"heads": heads[::2]}): "head 2 of model.blocks.2.attend; expected heads of",
        "[1]": "is not an ablation", "{": "damaged",
    }  # fmt: skip
    for text, error in cases.items():
        path.write_text(text)
        result = cli("look", recorded, "--ablation", path, "--html", page, "--overwrite")
        assert result[0] == 0 if not error else refused(result, "heads.json", error) is None
    misused(cli("look", recorded, "--ablation", tmp_path / "none.json"), "does not exist")
    misused(cli("look", "model", "a", "--generate", "--ablation", path), "--ablation")


@pytest.mark.parametrize("opens", [True, False, webbrowser.Error("none")])
def test_the_address_is_printed_and_a_browser_gets_a_file(
    recorded, cli, monkeypatch, tmp_path, opens
):
    files = []

    def browser(address):
        files.append(Path(url2pathname(urlsplit(address).path)))
        assert files[-1].parent == home
        assert files[-1].name.startswith("heedful-")
        assert stat.S_IMODE(files[-1].stat().st_mode) == 0o600
        assert 'url=http://127.0.0.1:1234/?word=w2"' in files[-1].read_text().replace(" ", "")
        if isinstance(opens, Exception):
            raise opens
        return opens

    def serve(texts, ready, *, port, lifetime, models, generation):
        assert not models
        assert generation is None
        assert lifetime == float("inf")  # standard input is no terminal
        uses = []

        def new_address(on_use=lambda: None):
            uses.append(on_use)
            return f"http://127.0.0.1:1234/?word=w{len(uses)}"

        ready(new_address)
        if files and opens is True:
            assert files[-1].exists()
            uses[1]()
        assert not any(file.exists() for file in files)

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr(webbrowser, "open", browser)
    monkeypatch.setattr(server, "serve", serve)
    status, output, _ = cli("look", recorded)
    assert status == 0
    assert output.splitlines()[0] == "http://127.0.0.1:1234/?word=w1"
    assert len(files) == 1
    assert ("ssh -L 1234:127.0.0.1:1234" in output) == (opens is not True)
    assert "Ctrl-C ends the server." in output
    assert "No browser" not in cli("look", recorded, "--no-browser")[1]
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22")
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail("opened"))
    assert "ssh -L 1234" in cli("look", recorded)[1]
    home.rmdir()  # a missing home directory
    monkeypatch.delenv("SSH_CONNECTION")
    assert "ssh -L 1234" in cli("look", recorded)[1]


ENTER = """
import sys, time
from heedful.cli.look import _on_enter
_on_enter(lambda: print("pressed", flush=True))
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_enter_in_the_terminal_calls_the_action():
    terminal, end = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", ENTER], stdin=end, stdout=subprocess.PIPE, text=True
    ) as process:
        for _ in range(2):
            os.write(terminal, b"\n")
            assert process.stdout.readline() == "pressed\n"
        process.kill()
    os.close(terminal)
    os.close(end)


def test_ctrl_c_ends_the_server(recorded, cli, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "serve", interrupted)
    assert cli("look", recorded) == (0, "", "\nended\n")
