"""`verify` finds trees whose rows follow a wrong path, positions and lengths being right."""

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep import build
from packprep.inspect.verify import verify
from tests.helpers.corpus import write_jsonl
from tests.helpers.examples import share_of_examples
from tests.helpers.files import config
from tests.helpers.planted import packs_of, plant
from tests.helpers.trees import Window, windows

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


@settings(max_examples=share_of_examples(20))
@given(
    window=windows(),
    options=st.fixed_dictionaries(
        {
            "min_shared": st.integers(1, 3),
            "max_length": st.sampled_from([24, 64]),
            "materialize": st.sampled_from(["shards", "index"]),
            "columns": st.sampled_from([(), ("position_ids", "document_ids")]),
        }
    ),
    data=st.data(),
)
def test_a_planted_parent_is_always_found(
    window: Window, options: dict[str, Any], data: st.DataObject
) -> None:
    """At level full; and at level fast too where positions are stored and disagree."""
    tokens, groups, masks = window
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: list[dict[str, Any]] = [
            {"ids": ids, "prompt": group, "mask": mask}
            for ids, group, mask in zip(
                tokens, groups, masks or [[True] * len(ids) for ids in tokens], strict=True
            )
        ]
        masked = {"loss_mask_column": "mask", "min_loss_tokens": 0, "vocab_size": 4}
        packs = packs_of(built(folder, rows, **masked, **options))
        wrong = [
            (pack, segment, parent)
            for pack, columns in enumerate(packs)
            for segment, right in enumerate(columns["segment_parents"])
            for parent in range(-1, segment)
            if parent != right
        ]
        if not wrong:
            return
        pack, segment, parent = data.draw(st.sampled_from(wrong))
        lengths = packs[pack].get("lengths") or np.diff(packs[pack]["cu_seqlens"]).tolist()
        parents = packs[pack]["segment_parents"]

        def before(parents: list[int]) -> int:
            """Tokens on the path to the segment."""
            above, count = parents[segment], 0
            while above >= 0:
                above, count = parents[above], count + lengths[above]
            return count

        def edit(planted: list[Pack]) -> None:
            planted[pack]["segment_parents"][segment] = parent

        plant(folder / "out", edit)
        assert not verify(folder / "out", level="full").sound
        edited = [*parents[:segment], parent, *parents[segment + 1 :]]
        if "position_ids" in packs[pack] and before(edited) != before(parents):
            found = [finding.what for finding in verify(folder / "out").findings]
            assert any("position" in what or "parent" in what for what in found), found
