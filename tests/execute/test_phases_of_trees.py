"""Phases whose rows share prefixes: every phase has trees of its own rows."""

from pathlib import Path

from packprep import BuildConfig, build
from packprep.exports.export import export
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import check_ledger
from tests.helpers.corpus import write_jsonl
from tests.helpers.export_readers import READERS
from tests.helpers.trees import answer_rows


def test_every_row_is_in_one_phase_in_the_length_of_that_phase(tmp_path: Path) -> None:
    manifest = build(
        BuildConfig(
            sources=(str(write_jsonl(tmp_path / "a.jsonl", answer_rows(60))),),
            output=str(tmp_path / "out"),
            input_ids_column="ids",
            loss_mask_column="mask",
            vocab_size=400,
            share_prefixes=True,
            min_shared=4,
            group_prefix="prompt",
            phases=({"tokens": "60%", "max_length": 64}, {"tokens": "40%", "max_length": 128}),
            keep_tokens=str(tmp_path / "store"),
        )
    )
    assert list(map(str, verify(tmp_path / "out", level="full").findings)) == []
    check_ledger(manifest.ledger, "manifest")
    assert manifest.ledger["shared"] > 0
    shards, rows = PackedShards(tmp_path / "out"), []
    for number, pack in enumerate(shards):
        assert len(pack.tokens) <= (64 if number < shards.phases[0].packs else 128)
        cu, parents = pack.cu_seqlens.tolist(), pack.columns["segment_parents"].tolist()
        of_rows = (pack.columns[name].tolist() for name in ("row_ids", "row_segments"))
        for row, segment in zip(*of_rows, strict=True):
            tokens: list[int] = []
            while segment >= 0:
                tokens = pack.tokens[cu[segment] : cu[segment + 1]].tolist() + tokens
                segment = parents[segment]
            rows.append((row, tokens))
    assert sorted(rows) == [(row, values["ids"]) for row, values in enumerate(answer_rows(60))]
    loader = PackedLoader(shards, 2, trees=True)
    assert {len(batch) <= 128 and len(batch.rows["row_ids"]) > 0 for batch in loader} == {True}

    export(tmp_path / "out", str(tmp_path / "exported"), "axolotl", unshared=True)
    lengths = [len(pack.tokens) for pack in READERS["axolotl"](tmp_path / "exported", "train")]
    shorter = next(number for number, length in enumerate(lengths) if length > 64)
    assert sum(lengths[:shorter]) > 0.5 * sum(lengths)
    assert verify(tmp_path / "exported").sound
