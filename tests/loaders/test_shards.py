"""Views of shards without a copy, in stored order.

Every defect is a sentence, and nothing is read that was not asked for.
"""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedShards
from packprep.schemas import FormatError, canonical_json, read_manifest
from packprep.schemas.canonical import file_digest
from packprep.schemas.files import shard_name
from packprep.schemas.storage.writing import write_manifest
from tests.helpers.tiny_shards import (
    COMPACT,
    GOLDEN,
    PLAIN,
    RICH,
    ROWS,
    Row,
    rich_row,
    row_of,
    write_output,
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Six packs in shards of 3, 0, 1 and 2 packs; the first in record batches of 2 and 1."""
    write_output(tmp_path / "out", {"train": [ROWS[:3], [], ROWS[3:4], ROWS[4:]]})
    return tmp_path / "out"


@pytest.fixture
def both(tmp_path: Path) -> Path:
    write_output(tmp_path / "both", {"train": [ROWS[:4]], "validation": [ROWS[4:]]})
    return tmp_path / "both"


def rows_of(packs: PackedShards) -> list[Row]:
    return [{name: values.tolist() for name, values in pack.columns.items()} for pack in packs]


def edit_manifest(out: Path, change: Callable[[Any, list[Any]], object]) -> None:
    """Write the manifest again. change: of its data, and of the entries of its shards."""
    manifest = read_manifest(out)
    data = {**manifest.data, "files": [dict(entry) for entry in manifest.data["files"]]}
    change(data, [entry for entry in data["files"] if "packs" in entry])
    write_manifest(out, data, manifest.run)


def rewrite(out: Path, shard: int, content: bytes) -> None:
    """Put other bytes in a shard's place; the manifest agrees with their number alone."""
    (out / shard_name(shard, 4)).write_bytes(content)
    edit_manifest(out, lambda _, shards: shards[shard].update(bytes=len(content)))


def rewritten(out: Path, shard: int, rows: list[Row], columns: Any = PLAIN) -> PackedShards:
    """The output with these packs in place of a shard's."""
    other = out.with_name("other")
    write_output(other, {"train": [rows]}, columns)
    rewrite(out, shard, (other / shard_name(0, 1)).read_bytes())
    return PackedShards(out)


def test_arrays_have_the_columns_types_and_are_views_of_the_file_that_outlive_it(out: Path) -> None:
    before = pa.total_allocated_bytes()
    pack = PackedShards(out)[1]
    assert pa.total_allocated_bytes() == before
    for column in PLAIN:
        values = pack.columns[column.name]
        assert values.dtype == column.numpy_dtype
        assert not values.flags.owndata
        assert not values.flags.writeable
    assert pack.tokens.tobytes() in (out / shard_name(0, 4)).read_bytes()
    shutil.rmtree(out)
    assert pack.tokens.tolist() == [2] * 8


def test_segments_are_documents_without_padding_and_filler_stays_visible() -> None:
    def segments(name: str, pack: int) -> list[Any]:
        found = PackedShards(GOLDEN / name, split="train")[pack].segments()
        return [(each.document_id, each.start, each.tokens.tolist()) for each in found]

    assert segments("v1-example", 1) == [(0, 0, [1, 10, 2]), (1, 8, [27, 2]), (2, 0, [1, 30, 2])]
    assert segments("v1-rich", 0) == [(0, 0, [5, 5, 5]), (1, 0, [5, 5, 5, 5]), (-1, 0, [])]
    pack = PackedShards(GOLDEN / "v1-rich", split="train")[0]
    assert pack.labels is not None
    assert pack.labels.tolist() == rich_row(0, 3, 4)["labels"]
    assert pack.columns["weight"].dtype == np.float32


LENGTHS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=9)


@given(LENGTHS, st.sampled_from([PLAIN, COMPACT]), st.data())
def test_whatever_is_written_is_read_mapped_or_not(
    tmp_path_factory: pytest.TempPathFactory, lengths: Any, columns: Any, data: st.DataObject
) -> None:
    rows = [row_of(n, *pack) for n, pack in enumerate(lengths)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    shards = [rows[first:last] for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    out, rows_per_batch = tmp_path_factory.mktemp("any") / "out", data.draw(st.integers(1, 3))
    write_output(out, {"train": shards}, columns, max_length=12, rows_per_batch=rows_per_batch)
    size = data.draw(st.sampled_from([None, 1, 2000]))
    packs = PackedShards(out, verify=True)
    read = PackedShards(out, mmap=False, cache_size=size, verify=True)
    assert rows_of(packs) == rows
    for pack, other in zip(packs, read, strict=True):
        for name, values in other.columns.items():
            assert values.dtype == pack.columns[name].dtype
            assert values.tolist() == pack.columns[name].tolist()
            assert not values.flags.writeable
        assert other.position_ids.tolist() == pack.position_ids.tolist()
    index = data.draw(st.integers(-len(rows), len(rows) - 1))
    assert packs[index].tokens.tolist() == read[index].tokens.tolist() == rows[index]["tokens"]
    for wrong in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError, match=rf"index {wrong} is out of range; .* {len(rows)} pa"):
            packs[wrong]


def test_a_split_is_chosen_by_name_or_by_its_directory(both: Path) -> None:
    assert rows_of(PackedShards(both, split="train")) == ROWS[:4]
    validation = PackedShards(both / "validation")
    assert rows_of(validation) == ROWS[4:]
    assert repr(validation) == f"PackedShards('{both}', split='validation': 2 packs, 12 tokens)"
    content = pickle.dumps(validation)  # as its path
    assert len(content) < 500
    assert rows_of(pickle.loads(content)) == ROWS[4:]
    with pytest.raises(ValueError, match="has the splits train, validation, and no split was"):
        PackedShards(both)
    with pytest.raises(ValueError, match="split='test' was passed"):
        PackedShards(both, split="test")


def test_the_report_is_read_and_must_be_the_one_of_the_build(out: Path) -> None:
    assert PackedShards(out).report["packs"] == 6
    report, manifest = out / "report.json", read_manifest(out)
    report.write_bytes(canonical_json(PackedShards(out).report | {"packs": 7}))
    with pytest.raises(FormatError, match=r"report\.json has sha256"):
        PackedShards(out).report  # noqa: B018
    report.write_bytes(b"{")
    entry = {"path": "report.json", "bytes": 1, "sha256": file_digest(report)}
    for files, words in (([entry], r"report\.json is not JSON"), ([], r"has no report\.json")):
        write_manifest(out, manifest.data, {"files": files})
        with pytest.raises(FormatError, match=words):
            PackedShards(out).report  # noqa: B018


def test_a_shard_that_is_missing_or_cut_is_found_at_open(out: Path) -> None:
    shard = out / shard_name(3, 4)
    content = shard.read_bytes()
    shard.write_bytes(content[:-8])
    cut = f"{shard.name} has {len(content) - 8} bytes; expected {len(content)}"
    with pytest.raises(FormatError, match=cut):
        PackedShards(out)
    shard.unlink()
    with pytest.raises(FormatError, match=f"{shard.name} is missing"):
        PackedShards(out)
    with pytest.raises(FormatError, match=r"nothing.manifest\.json does not exist"):
        PackedShards(out.with_name("nothing"))


def test_a_shard_with_other_columns_is_found_at_open(out: Path) -> None:
    with pytest.raises(FormatError, match=r"00000-of-00004\.arrow has the columns tokens, cu_seql"):
        rewritten(out, 0, [rich_row(0, 2)], RICH)


def test_a_stream_cut_at_a_record_batch_is_found_though_arrow_takes_it_for_whole(out: Path) -> None:
    stream = pa.ipc.open_stream(pa.OSFile(str(out / shard_name(0, 4)), "rb"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stream.schema) as writer:
        writer.write_batch(stream.read_next_batch())
    rewrite(out, 0, sink.getvalue().to_pybytes())
    packs = PackedShards(out)
    with pytest.raises(FormatError, match="holds 2 packs; the manifest says 3"):
        packs[0]


@pytest.mark.parametrize("content", [b"", b"not arrow", b"\xff" * 64, bytes(64)])
def test_a_shard_that_is_no_arrow_stream_is_a_sentence(out: Path, content: bytes) -> None:
    rewrite(out, 0, content)
    with pytest.raises(FormatError, match=r"00000-of-00004\.arrow is not a complete Arrow stream"):
        PackedShards(out)[0]


def test_wrong_lists_are_found_as_their_pack_is_read(out: Path) -> None:
    wrong = {**ROWS[1], "cu_seqlens": [0, 7]}
    packs = rewritten(out, 0, [ROWS[0], wrong, {**ROWS[2], "document_ids": [6, 7]}])
    assert packs[0].tokens.tolist() == ROWS[0]["tokens"]
    with pytest.raises(FormatError, match=r"00000-of-00004\.arrow pack 1: cu_seqlens are \[0, 7\]"):
        packs[1]
    with pytest.raises(FormatError, match=r"pack 2: document_ids has 2 values; expected 3"):
        packs[2]


@pytest.mark.parametrize("real", [[3, 5, 0], [-1, 4, 0]])
def test_a_segment_length_that_leaves_its_segment_is_found_as_the_pack_is_read(
    tmp_path: Path, real: list[int]
) -> None:
    row = {**rich_row(0, 3, 4), "segment_lengths": real}
    write_output(tmp_path / "out", {"train": [[row]]}, RICH, max_length=12)
    with pytest.raises(FormatError, match="pack 0: a value of segment_lengths is below 0 or above"):
        PackedShards(tmp_path / "out")[0]


def test_verify_names_the_pack_of_a_value_that_reading_does_not_check(tmp_path: Path) -> None:
    rows = [*ROWS[:2], {**ROWS[2], "position_ids": [0, 0, 1]}]
    write_output(tmp_path / "out", {"train": [rows]})
    assert len([*PackedShards(tmp_path / "out")]) == 3
    with pytest.raises(FormatError, match="pack 2 segment 2 token 0: position_ids has 1; expected"):
        PackedShards(tmp_path / "out", verify=True)


def test_verify_counts_segments_and_tokens(out: Path) -> None:
    edit_manifest(out, lambda data, _: data["splits"]["train"].update(segments=12))
    with pytest.raises(FormatError, match="has 10 segments of train; the manifest says 12"):
        PackedShards(out, verify=True)
    tokens = {2: 12, 3: 2}  # of the two shards, exchanged
    edit_manifest(out, lambda _, shards: [shards[n].update(tokens=tokens[n]) for n in tokens])
    with pytest.raises(FormatError, match="has 2 tokens; the manifest says 12"):
        PackedShards(out, verify=True)


def test_a_surplus_file_is_no_reason_not_to_read_but_a_finding(out: Path) -> None:
    # datasets puts caches here when somebody maps over the output
    (out / "cache-0123456789abcdef.arrow").touch()
    assert len(PackedShards(out, verify=True)) == 6
    (out / "surplus.arrow").touch()
    assert len(PackedShards(out)) == 6
    with pytest.raises(FormatError, match=r"surplus\.arrow is not in the manifest"):
        PackedShards(out, verify=True)


def test_follow_answers_with_the_way_that_serves_now(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out is finished, and leave follow out"):
        PackedShards(tmp_path / "out", follow=True)  # type: ignore[arg-type]
