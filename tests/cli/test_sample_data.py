"""Sample data: what is made of sources, and what is refused."""

import sys
import sysconfig
from pathlib import Path

import pytest

from packprep.cli import sample_data
from packprep.support.errors import InputError

SOURCE = '''
def shorten(text, width=70):
    """Collapse and cut
    the text.

    Words are not torn apart.
    """

def _private():
    """Nobody asks."""

def undocumented():
    pass

class Wrapper:
    async def fill(self):
        """Fill a paragraph."""
'''


def test_functions_are_public_documented_and_known_by_their_whole_name() -> None:
    sources = {
        "textwrap.py": SOURCE,
        "_hidden.py": SOURCE,
        "idlelib/editor.py": SOURCE,
        "broken.py": "def (",
    }
    assert list(sample_data._functions(sources)) == [
        sample_data.Function(
            "textwrap",
            "textwrap.shorten",
            "textwrap.shorten(text, width=70)",
            "Collapse and cut the text.",
            "Words are not torn apart.",
            "textwrap.py, line 2: def shorten(text, width=70)",
        ),
        sample_data.Function(
            "textwrap",
            "textwrap.Wrapper.fill",
            "textwrap.Wrapper.fill(self)",
            "Fill a paragraph.",
            "",
            "textwrap.py, line 16: def fill(self)",
        ),
    ]


def test_a_package_has_the_name_of_its_folder() -> None:
    [function, _] = sample_data._functions({"json/__init__.py": SOURCE})
    assert (function.module, function.name) == ("json", "json.shorten")


@pytest.mark.parametrize(
    ("count", "most", "kept"), [(4, 9, [0, 1, 2, 3]), (9, 3, [0, 3, 6]), (7, 3, [0, 3, 6])]
)
def test_functions_are_taken_evenly(count: int, most: int, kept: list[int]) -> None:
    functions = [sample_data.Function("m", f"m.f{n}", "", "", "", "") for n in range(count)]
    assert sample_data._spread(functions, most) == [functions[number] for number in kept]


def test_an_answer_of_a_pair_is_never_its_own_neighbour() -> None:
    functions = list(sample_data._functions({"textwrap.py": SOURCE}))
    assert [(pair["chosen"], pair["rejected"]) for pair in sample_data._pairs(functions)] == [
        ("Collapse and cut the text.\n\nWords are not torn apart.", "Fill a paragraph."),
        ("Fill a paragraph.", "Collapse and cut the text.\n\nWords are not torn apart."),
    ]
    assert list(sample_data._pairs(functions[:1])) == []


def test_a_python_without_sources_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(InputError, match="holds no Python sources, which the sample is made of"):
        sample_data._sources()


def test_a_python_without_topics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(InputError, match=r"this Python has no module pydoc_data\.topics"):
        sample_data._topics()
