"""Documents and filler of trees follow from their rows, where shards do not store them."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packprep.inspect.verify import verify
from packprep.output.shard_writer import record_batch
from packprep.schemas.batch_view import BatchView, batch_view
from packprep.schemas.trees import path_ends, path_starts, rows_view, segment_documents
from packprep.schemas.views import list_view
from packprep.windows.planner import resized
from tests.helpers.trees import Window, plan_and_layout, tree_documents, tree_output, windows


def view_of(window: Window, fillers: int, columns: tuple[str, ...], max_length: int) -> BatchView:
    """The packs of a window with these columns and this number of filler packs at the end."""
    options: Any = {"columns": columns, "max_length": max_length, "min_loss_tokens": 0}
    plan, layout, config = plan_and_layout(tree_documents(*window), **options)
    packs = resized(plan.packs, fillers, config.pack_order.name)
    batch = record_batch(packs, 0, len(packs), layout)
    names = [column.name for column in layout.columns]
    return batch_view({name: list_view(batch, name, "here") for name in names}, "here", 0)


@given(windows(), st.integers(0, 3), st.integers(2, 24))
def test_documents_of_segments_and_filler_follow_from_the_rows(
    window: Window, fillers: int, max_length: int
) -> None:
    stored = view_of(window, fillers, ("document_ids", "document_starts"), max_length)
    bare = view_of(window, fillers, (), max_length)
    assert "document_ids" not in bare.columns
    assert segment_documents(bare).tolist() == stored.columns["document_ids"].tolist()
    assert bare.filler.tolist() == (stored.columns["document_ids"] < 0).tolist()
    assert int(bare.filler.sum()) == fillers
    rows, expected = rows_view(bare), rows_view(stored)
    assert {*rows.columns} == {*expected.columns}
    for name, values in rows.columns.items():
        assert np.array_equal(values, expected.columns[name])


def test_the_paths_through_a_segment_end_after_the_last_below_it() -> None:
    parents, lengths = np.array([-1, 0, 1, 2, 1, 0, -1]), np.array([5, 4, 3, 2, 1, 7, 6])
    assert path_ends(parents).tolist() == [6, 5, 4, 4, 5, 6, 7]
    assert path_starts(parents, lengths).tolist() == [0, 5, 9, 12, 9, 5, 0]


def test_a_pack_that_lost_its_rows_is_no_filler(tmp_path: Path) -> None:
    rows, ids = [[1, 2, 3], [1, 2, 4], [5, 6, 7]], [0, 0, 1]
    options: dict[str, Any] = {"max_length": 5, "columns": (), "order": "input"}
    whole = verify(tree_output(tmp_path / "whole", rows, ids, **options))
    lost = verify(tree_output(tmp_path / "lost", rows, ids, lost_rows=1, **options))
    assert "padding" not in whole.findings.counts
    assert "data-00000-of-00001.arrow pack 1 segment 0: padding has the label 7; expected -100" in [
        str(finding) for finding in lost.findings
    ]
