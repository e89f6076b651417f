"""Pages from templates, with cached bytecode next to them."""

import sys

import pytest

from csrun.base import html_pages


@pytest.fixture
def folder(tmp_path):
    (tmp_path / html_pages.TEMPLATE).write_text("<p>{{ words | shown }}</p>")
    return tmp_path


@pytest.fixture
def shown(folder, monkeypatch):
    """The page made by a new process, and how many templates it compiles."""
    jinja2 = pytest.importorskip("jinja2")
    compiled = []
    compile_template = jinja2.Environment.compile

    def count(environment, *arguments):
        compiled.append(arguments)
        return compile_template(environment, *arguments)

    monkeypatch.setattr(jinja2.Environment, "compile", count)

    def make():
        html_pages._template.cache_clear()
        compiled.clear()
        return html_pages.page(folder, {"shown": str.upper}, words="a < b"), len(compiled)

    yield make
    html_pages._template.cache_clear()


def test_a_template_is_compiled_once_for_all_processes(folder, shown):
    assert shown() == ("<p>A &lt; B</p>", 1)
    assert shown() == ("<p>A &lt; B</p>", 0)
    (folder / html_pages.TEMPLATE).write_text("{{ words }}")
    assert shown() == ("a &lt; b", 1)


@pytest.mark.parametrize("left", [0, 5, 30, -1])
def test_damaged_bytecode_is_compiled_again(folder, shown, left):
    shown()
    (file,) = (folder / "__pycache__").iterdir()
    file.write_bytes(file.read_bytes()[:left])
    assert shown() == ("<p>A &lt; B</p>", 1)
    assert shown() == ("<p>A &lt; B</p>", 0)


@pytest.mark.parametrize("blocked", ["file", "told"])
def test_a_folder_that_takes_no_bytecode_is_done_without(folder, shown, monkeypatch, blocked):
    if blocked == "file":
        (folder / "__pycache__").write_text("")
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for _ in range(2):
        assert shown() == ("<p>A &lt; B</p>", 1)
    assert not (folder / "__pycache__").is_dir()
