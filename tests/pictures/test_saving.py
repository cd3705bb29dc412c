"""Saving of figures: three formats, atomic writes."""

import os
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from heedful.errors import ArgumentError, SaveError
from heedful.pictures.plots import heatmaps, save

SIGNATURES = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-", ".PNG": b"\x89PNG\r\n"}


@pytest.fixture
def figure():
    odd = ["$x_1$", "注意", "\x07", "مرحبا 😀"]
    return heatmaps([np.eye(4)], odd, titles=["$5 注意"], title="{$\x00$}")


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_the_suffix_chooses_the_format(figure, tmp_path, suffix):
    path = tmp_path / f"map{suffix}"
    assert save(figure, path) == path
    assert path.read_bytes().startswith(SIGNATURES[suffix])
    assert os.listdir(tmp_path) == [path.name]


def test_svg_with_any_text_is_xml(tmp_path):
    figure = Figure()
    figure.text(0.1, 0.1, "".join(map(chr, [*range(256), 0xD800, 0xFFFE, 0xFFFF])) + "end")
    texts = ET.parse(save(figure, tmp_path / "map.svg")).iter("{http://www.w3.org/2000/svg}text")
    assert "".join(text.text or "" for text in texts).endswith("end")


@pytest.mark.parametrize("name", ["map.jpg", ".png"])
def test_an_error_for_another_suffix_names_the_three(figure, tmp_path, name):
    with pytest.raises(ArgumentError, match=r"\.png, \.svg or \.pdf") as raised:
        save(figure, tmp_path / name)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_created_but_a_file_is_not_replaced(figure, tmp_path):
    assert save(figure, tmp_path / "missing" / "map.png").exists()
    (tmp_path / "a_file").write_text("kept")
    with pytest.raises(SaveError, match="cannot write") as raised:
        save(figure, tmp_path / "a_file" / "map.png")
    assert "\n" not in str(raised.value)
    assert (tmp_path / "a_file").read_text() == "kept"
