"""A page's modules as one script: what it does is what the modules do, or it is refused."""

import pytest
from node import returned

from heedful.errors import RunError
from heedful.views import bundler

MODULES = {
    "entry.js": 'import { half as h, list } from "./more.js";\nimport one from "./one.js";\n'
    'import "./first.js";\nexport const told = [h(6), one, ...list, globalThis.first];\n',
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


def test_it_does_what_the_modules_do(page):
    script = page / "script.mjs"
    script.write_text(bundler.one_script(page / "entry.js"))
    assert returned(page, {"made": script}, "made.told") == [3, 7, 1, "<b>"]


@pytest.mark.parametrize(
    "line",
    [
        "export const [A, B] = [1, 2];",
        "export const { A, B } = { A: 1, B: 2 };",
        'export * from "./one.js";',
        'import * as one from "./one.js";',
    ],
)
def test_a_form_that_is_not_known_is_refused(page, line):
    """Else its names would be undefined, and nobody would be told."""
    (page / "more.js").write_text(f"{MODULES['more.js']}{line}\n")
    with pytest.raises(RunError) as error:
        bundler.one_script(page / "entry.js")
    assert str(error.value).startswith(f"more.js: {line}")
