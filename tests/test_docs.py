"""The examples in the documents run and give what they say."""

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", [path.name for path in sorted(DOCS.glob("*.md"))])
def test_the_examples_of_a_document_are_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    failed, _tried = doctest.testfile(str(DOCS / name), module_relative=False)
    assert failed == 0
