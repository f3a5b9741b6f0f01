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

from packprep import BuildConfig, build
from packprep.inspect.verify import verify
from tests.helpers.corpus import write_jsonl
from tests.helpers.planted import packs_of, plant
from tests.helpers.trees import Window, windows

PROMPT, ANSWER = 20, 5
Pack = dict[str, list[Any]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three answers to each of three prompts, all of the same lengths, in one pack."""
    folder = tmp_path_factory.mktemp("trees")
    draw = random.Random(0)
    rows = []
    for group in range(3):
        prompt = [draw.randrange(100) for _ in range(PROMPT)]
        rows += [
            {"ids": prompt + [10 * group + n] + [draw.randrange(100) for _ in range(ANSWER - 1)]}
            | {"prompt": group}
            for n in range(3)
        ]
    return built(folder, rows, vocab_size=100, max_length=256)


def built(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    """A sound output with trees of these rows of token ids."""
    config = BuildConfig(
        sources=(str(write_jsonl(folder / "a.jsonl", rows)),),
        output=str(folder / "out"),
        input_ids_column="ids",
        share_prefixes=True,
        group_prefix="prompt",
        **options,
    )
    build(config)
    assert verify(folder / "out", level="full").sound
    return folder / "out"


def kinds_in(output: Path) -> tuple[list[int], list[int]]:
    """Roots, and leaves, of the only pack."""
    [pack] = packs_of(output)
    parents = pack["segment_parents"]
    roots = [segment for segment, parent in enumerate(parents) if parent < 0]
    assert len(roots) == 3
    leaves = [segment for segment, parent in enumerate(parents) if parent >= 0]
    assert len(leaves) == 9
    return roots, leaves


def test_a_parent_of_another_tree_is_found_where_positions_agree(
    sound: Path, tmp_path: Path
) -> None:
    roots, leaves = kinds_in(sound)
    [pack] = packs_of(sound)
    wrong = [
        (leaf, root)
        for leaf in leaves
        for root in roots
        if root < leaf and root != pack["segment_parents"][leaf]
    ]
    assert len(wrong) == 9
    for number, (leaf, root) in enumerate(wrong):
        out = Path(shutil.copytree(sound, tmp_path / str(number)))

        def edit(packs: list[Pack], leaf: int = leaf, root: int = root) -> None:
            packs[0]["segment_parents"][leaf] = root

        plant(out, edit)
        for level in ("fast", "full"):
            verdict = verify(out, level=level)
            assert not verdict.sound
            found = [finding.what for finding in verdict.findings]
            assert any(f"parent {root} is not on the path" in detail for detail in found)


def exchanged(column: str, size: int, first: int, second: int) -> Callable[[Pack], None]:
    """Exchange `size` values of a column, which begin at these places."""

    def edit(pack: Pack) -> None:
        values = pack[column]
        one, other = slice(first, first + size), slice(second, second + size)
        values[one], values[other] = values[other], values[one]

    return edit


@pytest.mark.parametrize("kind", ["roots", "leaves", "rows"])
def test_rows_on_the_path_of_another_tree_are_found_at_level_full(
    sound: Path, tmp_path: Path, kind: str
) -> None:
    """The same as wrong parents, with segments in depth-first order."""
    roots, leaves = kinds_in(sound)
    [before] = packs_of(sound)
    cu = before["cu_seqlens"]
    edits = {
        "roots": [
            exchanged(column, PROMPT, cu[roots[0]], cu[roots[1]]) for column in ("tokens", "labels")
        ],
        "leaves": [
            exchanged(column, ANSWER, cu[leaves[0]], cu[leaves[-1]])
            for column in ("tokens", "labels")
        ],
        "rows": [exchanged("row_ids", 1, 0, len(before["row_ids"]) - 1)],
    }
    out = Path(shutil.copytree(sound, tmp_path / "out"))

    def edit(packs: list[Pack]) -> None:
        for each in edits[kind]:
            each(packs[0])

    plant(out, edit)
    assert not verify(out, level="full").sound


@settings(max_examples=15, deadline=None)
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
