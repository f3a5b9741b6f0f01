"""Phases whose rows share prefixes: every phase has trees of its own rows."""

from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.exports.export import export
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import check_ledger, read_manifest
from tests.helpers.corpus import write_jsonl
from tests.helpers.export_readers import READERS
from tests.helpers.trees import answer_rows

PHASES = [{"tokens": "60%", "max_length": 64}, {"tokens": "40%", "max_length": 128}]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "sources": (str(write_jsonl(tmp_path / "a.jsonl", answer_rows(60))),),
        "output": str(tmp_path / "out"),
        "input_ids_column": "ids",
        "loss_mask_column": "mask",
        "vocab_size": 400,
        "share_prefixes": True,
        "min_shared": 4,
        "group_prefix": "prompt",
        "phases": PHASES,
        "keep_tokens": str(tmp_path / "store"),
    }


def test_every_row_is_in_one_phase_and_the_account_closes(
    options: dict[str, Any], tmp_path: Path
) -> None:
    manifest = build(BuildConfig(**options))
    verdict = verify(tmp_path / "out", level="full")
    assert verdict.sound, [str(finding) for finding in verdict.findings]
    check_ledger(manifest.ledger, "manifest")
    assert manifest.ledger["shared"] > 0
    shards, rows = PackedShards(tmp_path / "out"), []
    for number, pack in enumerate(shards):
        phase = 0 if number < shards.phases[0].packs else 1
        assert len(pack.tokens) <= (64, 128)[phase]
        cu, parents = pack.cu_seqlens.tolist(), pack.columns["segment_parents"].tolist()
        for row, segment in zip(
            pack.columns["row_ids"].tolist(), pack.columns["row_segments"].tolist(), strict=True
        ):
            tokens: list[int] = []
            while segment >= 0:
                tokens = pack.tokens[cu[segment] : cu[segment + 1]].tolist() + tokens
                segment = parents[segment]
            rows.append((row, tokens))
    assert sorted(rows) == [(row, values["ids"]) for row, values in enumerate(answer_rows(60))]
    loader = PackedLoader(shards, 2, trees=True)
    assert {len(batch) <= 128 and len(batch.rows["row_ids"]) > 0 for batch in loader} == {True}


def test_unshared_rows_keep_the_length_of_their_phase(
    options: dict[str, Any], tmp_path: Path
) -> None:
    build(BuildConfig(**options))
    export(tmp_path / "out", str(tmp_path / "exported"), "axolotl", unshared=True)
    lengths = [len(pack.tokens) for pack in READERS["axolotl"](tmp_path / "exported", "train")]
    assert max(lengths) > 64
    shorter = next(number for number, length in enumerate(lengths) if length > 64)
    assert sum(lengths[:shorter]) > 0.5 * sum(lengths)
    assert verify(tmp_path / "exported").sound


def test_a_later_phase_is_replaced_and_earlier_ones_stay(options: dict[str, Any]) -> None:
    first = {"tokens": 3000, "max_length": 64}
    before, after = (
        build(BuildConfig(**options | {"phases": [first, last], **more}))
        for last, more in (
            ({"tokens": 1000, "max_length": 128}, {}),
            ({"tokens": 2000, "max_length": 256}, {"overwrite": True}),
        )
    )
    shards = [
        [entry.sha256 for entry in manifest.shards("train") if entry.phase == 0]
        for manifest in (before, after)
    ]
    assert shards[0] == shards[1] != []
    assert after.phases[1].max_length == 256
    assert verify(Path(options["output"]), level="full").sound
    assert read_manifest(Path(options["output"])).has_trees
