"""Outputs with trees, from rows of token ids."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from packprep import BuildConfig
from packprep.output.shard_writer import ShardLayout, iterate_batches
from packprep.schemas.columns import STANDARD_COLUMNS, Column
from packprep.schemas.index.runs import Pointers
from packprep.windows.documents import Documents
from packprep.windows.planner import WindowPlan, plan_window

from . import documents
from .tiny_shards import write_output

Rows = Sequence[Sequence[int]]
Masks = Sequence[Sequence[bool]]
Window = tuple[list[list[int]], list[int], list[list[bool]] | None]


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Rows, of which many go on from another of the same id; ids; trained tokens."""
    rows: list[list[int]] = []
    ids: list[int] = []
    for number in range(draw(st.integers(1, 4))):
        of_id: list[list[int]] = []
        for _ in range(draw(st.integers(1, 5))):
            begin: list[int] = draw(st.sampled_from([[], *of_id]))
            kept: int = draw(st.integers(0, len(begin)))
            tail = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
            of_id.append(begin[:kept] + tail)
        rows += of_id
        ids += [number] * len(of_id)
    if draw(st.booleans()):
        return rows, ids, None
    kind = draw(st.sampled_from(["tail", "any"]))
    masks = []
    for row in rows:
        if kind == "tail":
            first = draw(st.integers(0, len(row)))
            masks.append([place >= first for place in range(len(row))])
        else:
            masks.append([draw(st.booleans()) for _ in row])
    return rows, ids, masks


ANSWERS = 4
"""Answers to each prompt of `answer_rows`."""


def answer_rows(groups: int) -> list[dict[str, Any]]:
    """Some answers to each of the prompts, with a value for each row and for each token."""
    draw = random.Random(0)
    rows = []
    for group in range(groups):
        prompt = [draw.randrange(3, 400) for _ in range(draw.randrange(4, 30))]
        for number in range(ANSWERS):
            answer = [draw.randrange(3, 400) for _ in range(draw.randrange(1, 20))]
            ids = prompt + answer
            rows.append(
                {
                    "ids": ids,
                    "mask": [0] * len(prompt) + [1] * len(answer),
                    "prompt": group,
                    "set": (group + number) % 3,
                    "quality": number / 8,
                    "weights": [place / 4 for place in range(len(ids))],
                }
            )
    return rows


def tree_documents(
    rows: Rows, ids: Sequence[int], masks: Masks | None = None, *, as_mask: bool = True
) -> Documents:
    """Documents with these tokens and ids; masks: their trained tokens, all of them by default."""
    tokens = np.array([token for row in rows for token in row], np.int32)
    lengths = np.array([len(row) for row in rows], np.int32)
    first = np.cumsum(lengths, dtype=np.int64) - lengths
    aligned = {}
    if masks is not None:
        trained = np.array([each for row in masks for each in row], np.bool_)
        labels = trained.astype(np.int8) if as_mask else np.where(trained, tokens, -100)
        aligned["labels"] = Pointers.into(labels.astype(np.int8 if as_mask else np.int32), first)
    return Documents(
        id=np.array(ids, np.int64),
        tokens=Pointers.into(tokens, first),
        length=lengths,
        source=np.zeros(len(rows), np.int32),
        group=None,
        aligned=aligned,
        values={"turn_ids": np.arange(len(rows), dtype=np.int32)},
    )


def plan_and_layout(
    tokenized: Documents, **options: Any
) -> tuple[WindowPlan, ShardLayout, BuildConfig]:
    """Plan of a window with trees, and the columns of its shards."""
    config = BuildConfig(**{"share_prefixes": 1, **options})
    policy = documents.tokenizer(bos=False, eos=False)
    carried: list[Column] = [STANDARD_COLUMNS["turn_ids"]]
    carried += [STANDARD_COLUMNS["labels"]] if "labels" in tokenized.aligned else []
    plan = plan_window(tokenized, policy, config.pack_rules(), seed=0)
    return (plan, ShardLayout.of(config.pack_rules(), config.writing, policy, carried), config)


def tree_output(
    path: Path,
    rows: Rows,
    ids: Sequence[int],
    masks: Masks | None = None,
    *,
    lost_rows: int = 0,
    **options: Any,
) -> Path:
    """Write an output with the trees of these rows. lost_rows: last packs without their rows."""
    plan, layout, config = plan_and_layout(tree_documents(rows, ids, masks), **options)
    table = pa.Table.from_batches(list(iterate_batches(plan.packs, layout)), schema=layout.schema)
    packs = table.to_pylist()
    for pack in packs[len(packs) - lost_rows :]:
        pack.update({column.name: [] for column in layout.columns if column.kind == "row"})
    write_output(
        path,
        {"train": [packs]},
        layout.columns,
        max_length=config.max_length,
        vocab_size=layout.vocab_size,
        source_documents=max(ids) + 1,
    )
    return path
