"""`verify` finds trees whose rows follow a wrong path, positions and lengths being right."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packprep import build
from packprep.inspect.verify import verify
from tests.helpers.corpus import write_jsonl
from tests.helpers.files import config
from tests.helpers.planted import packs_of, plant

PROMPT, ANSWER = 20, 5
Pack = dict[str, list[Any]]


def built(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    """A sound output with trees of these rows of token ids."""
    shared: dict[str, Any] = {"share_prefixes": True, "group_prefix": "prompt"}
    source = str(write_jsonl(folder / "a.jsonl", rows))
    given = {"sources": (source,), "output": str(folder / "out"), "input_ids_column": "ids"}
    build(config(**given, **shared, **options))
    assert verify(folder / "out", level="full").sound
    return folder / "out"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three answers to each of three prompts, all of the same lengths, in one pack."""
    draw = random.Random(0)

    def some(count: int) -> list[int]:
        return [draw.randrange(100) for _ in range(count)]

    prompts = [some(PROMPT) for _ in range(3)]
    rows = [
        {"ids": prompts[group] + [10 * group + n] + some(ANSWER - 1), "prompt": group}
        for group in range(3)
        for n in range(3)
    ]
    return built(tmp_path_factory.mktemp("trees"), rows, vocab_size=100, max_length=256)


def planted(sound: Path, tmp_path: Path, edit: Callable[[Pack], None]) -> Path:
    """A copy of the output, with a change of its only pack under right digests."""
    out = Path(shutil.copytree(sound, tmp_path / str(len([*tmp_path.iterdir()]))))
    plant(out, lambda packs: edit(packs[0]))
    return out


def kinds_in(output: Path) -> tuple[Pack, list[int], list[int]]:
    """The only pack, its roots and its leaves."""
    [pack] = packs_of(output)
    parents = pack["segment_parents"]
    roots = [segment for segment, parent in enumerate(parents) if parent < 0]
    leaves = [segment for segment, parent in enumerate(parents) if parent >= 0]
    assert (len(roots), len(leaves)) == (3, 9)
    return pack, roots, leaves


def test_a_parent_of_another_tree_is_found_where_positions_agree(
    sound: Path, tmp_path: Path
) -> None:
    pack, roots, leaves = kinds_in(sound)
    right = pack["segment_parents"]
    wrong = [(leaf, root) for leaf in leaves for root in roots if right[leaf] != root < leaf]
    assert len(wrong) == 9
    for leaf, root in wrong:

        def edit(pack: Pack, leaf: int = leaf, root: int = root) -> None:
            pack["segment_parents"][leaf] = root

        out = planted(sound, tmp_path, edit)
        for level in ("fast", "full"):
            found = [finding.what for finding in verify(out, level=level).findings]
            assert any(f"parent {root} is not on the path" in detail for detail in found)
