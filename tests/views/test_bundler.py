"""The bundled script behaves as its modules do; unsupported forms raise an error."""

import pytest
from node import returned

from heedful.errors import RunError
from heedful.views import bundler

MODULES = {
    "entry.js": 'import { half as h, list } from "./more.js";\nimport seven from "./one.js";\n'
    'import "./first.js";\nexport const result = [h(6), seven, ...list, globalThis.first];\n',
    "more.js": "export async function later() {}\nexport function half(x) {\n  return x / 2;\n}\n"
    'const list = [1];\nexport { list };\nexport { default } from "./one.js";\n',
    "one.js": "export default 7;\n",
    "first.js": 'globalThis.first = "<b>";\n',
}


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A folder with the modules."""
    monkeypatch.setattr(bundler, "VIEWS", tmp_path)
    for name, source in MODULES.items():
        (tmp_path / name).write_text(source)
    return tmp_path


def test_the_bundle_behaves_as_its_modules(page):
    script = page / "script.mjs"
    script.write_text(bundler.one_script(page / "entry.js"))
    assert returned(page, {"bundle": script}, "bundle.result") == [3, 7, 1, "<b>"]


@pytest.mark.parametrize(
    "line",
    [
        "export const [A, B] = [1, 2];",
        "export const { A, B } = { A: 1, B: 2 };",
        'export * from "./one.js";',
        'import * as one from "./one.js";',
    ],
)
def test_an_unsupported_form_is_refused(page, line):
    """Otherwise the names would be undefined, without an error."""
    (page / "more.js").write_text(f"{MODULES['more.js']}{line}\n")
    with pytest.raises(RunError) as error:
        bundler.one_script(page / "entry.js")
    assert str(error.value).startswith(f"more.js: {line}")
