"""The output of a cell: a widget, a frame if the widget's front end is missing, or a table."""

import gc
import html
import re
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from small_recordings import KINDS, of_gpt, padded, sharp

import heedful
from heedful.errors import ArgumentError
from heedful.recording import html_table
from heedful.views.explorer.catalogue import Catalogue
from heedful.views.notebook import display
from heedful.views.notebook.kernel_side import texts_and_view

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def kernel(monkeypatch):
    """Make this process look like the kernel of an unknown notebook."""
    monkeypatch.setattr(display, "is_notebook", lambda: True)
    for name in display.VS_CODE:
        monkeypatch.delenv(name, raising=False)


def mime_data(bundle):
    return bundle[0] if isinstance(bundle, tuple) else bundle


def test_a_bundle_has_the_widget_beside_table_and_text(kernel):
    recording = padded()
    for shown in (recording, recording.sequences[1], recording[1]):
        assert list(mime_data(shown._repr_mimebundle_())) == [WIDGET]
        assert "<table" in shown._repr_html_()
        assert repr(shown).startswith("<")


def test_without_anywidget_the_table_names_the_package_to_install(kernel, monkeypatch):
    monkeypatch.setattr(display, "has_widgets", lambda: False)
    monkeypatch.setattr(html_table, "find_spec", lambda name: None)
    recording = of_gpt()
    assert recording._repr_mimebundle_() is None
    assert "pip install 'heedful[notebook]'" in html.unescape(recording._repr_html_())
    with pytest.raises(ArgumentError, match="heedful\\[notebook\\]"):
        heedful.look(recording, kernel=True)


@pytest.mark.parametrize("host", ["VS Code", "Colab"])
def test_a_frame_replaces_widgets_that_would_be_downloaded(kernel, monkeypatch, host):
    if host == "Colab":
        monkeypatch.setitem(sys.modules, "google.colab", SimpleNamespace())
    else:
        monkeypatch.setenv("VSCODE_PID", "7")
    recording = of_gpt()
    data = mime_data(recording._repr_mimebundle_())
    assert list(data) == ["text/html"]
    assert list(mime_data(heedful.look(recording, kernel=True)._repr_mimebundle_())) == [WIDGET]


def test_a_frame_is_small_and_sandboxed_and_begins_with_a_description():
    recording = KINDS["causal"]()
    output = display.frame(recording.sequences[0][1])
    assert len(output) < display.LIMIT * 1.1e6
    line, page = re.fullmatch(
        r'<div style="[^"]*">(.*?)</div><iframe sandbox="allow-scripts allow-downloads" .*? '
        r'srcdoc="(.*)"></iframe>', output, re.S,
    ).groups()  # fmt: skip
    assert html.unescape(line).startswith("Call 'blocks.1.attend': causal")
    assert "weight" in line
    assert "connect-src 'none'" in html.unescape(page)


def test_the_page_of_a_call_or_text_opens_at_it():
    recording = KINDS["generated"]()
    [last] = recording.stitched()[-1:]
    texts, view = texts_and_view(last)
    call = view.removeprefix("call=").split(".")
    assert "all passes" in texts.about()[0]["texts"][int(call[1])]["label"]
    torch.testing.assert_close(texts.call(*map(int, call)).weights(), last.weights())
    batch = padded()
    assert texts_and_view(batch)[1] == ""
    assert texts_and_view(batch.sequences[1])[1] == "call=0.1.0"
    assert texts_and_view(batch.sequences[1][1])[1] == "call=0.1.1"


def test_a_call_without_its_recording_has_no_page():
    call = of_gpt()[1]
    gc.collect()
    with pytest.raises(heedful.errors.RunError, match="keep it in a variable"):
        texts_and_view(call)


def test_inputs_of_look_and_their_errors(tmp_path):
    recording = of_gpt()
    path = recording.save(tmp_path / "one.safetensors")
    assert heedful.look(recording, layers=[1], heads=[0])._repr_html_() == recording._repr_html_()
    assert len(heedful.look(path).shown) == len(heedful.look(str(path)).shown) == 2
    for wrong, words in [
        (lambda: heedful.look(7), "an object of type int"),
        (lambda: heedful.look(recording, "a text"), "a text beside a recording"),
        (lambda: heedful.look(recording, layers=[9]), "layer 9; expected one of the layers 0 to 1"),
        (lambda: heedful.look("none/here", "a"), "none/here"),
    ]:
        with pytest.raises(heedful.errors.HeedfulError, match=words):
            wrong()


def test_every_window_is_listed_with_its_code_and_view():
    """Two images in four windows each."""
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2], num_heads=[2], window_size=4
    )
    model = transformers.SwinModel._from_config(config, attn_implementation="eager")
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), heedful.record(sharp(model, 6, 0.3)) as recording:
        [true] = model(x, output_attentions=True).attentions
    texts = Catalogue({"swin": recording})
    [about] = texts.about()
    names = [f"text {text}, part {part}" for text in (1, 2) for part in (1, 2, 3, 4)]
    assert [text["label"] for text in about["texts"]] == names
    for t, text in enumerate(about["texts"]):
        calls = eval(text["code"], {"recording": recording})
        assert len(text["calls"]) == 2
        for c, call in enumerate(text["calls"]):
            shown = texts.call(0, t, c).weights()
            torch.testing.assert_close(shown, calls[call["at"]].weights())
        torch.testing.assert_close(shown, true[t], atol=1e-5, rtol=0)
    window = recording.sequences[1].parts[2]
    assert texts_and_view(window)[1] == "call=0.6.0"
    assert texts_and_view(window[1])[1] == "call=0.6.1"
