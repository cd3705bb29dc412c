import sys

import pytest

from heedful.errors import TextError
from heedful.text import LICENCE, python_reference


def test_every_topic_is_there_in_order():
    from pydoc_data.topics import topics

    text = python_reference()
    places = [text.index(topics[name].strip()) for name in sorted(topics)]
    assert len(places) > 50
    assert text.startswith(topics[min(topics)])
    assert text.endswith(topics[max(topics)].rstrip("\n") + "\n")


def test_the_licence_names_the_owner_and_the_terms():
    assert all(word in LICENCE for word in ("Python Software Foundation", "PSF-2.0", "Zero-Clause"))


def test_a_python_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(TextError, match="minimal build"):
        python_reference()
