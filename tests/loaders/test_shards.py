"""Views of shards without a copy, in stored order.

Every defect is a sentence, and nothing is read that was not asked for.
"""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedShards
from packprep.schemas import STANDARD_COLUMNS, FormatError, canonical_json, read_manifest
from packprep.schemas.canonical import file_digest
from packprep.schemas.files import shard_name
from packprep.schemas.storage.writing import write_manifest
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, PLAIN, RICH, Row, rich_row, write_output


def row_of(first: int, *lengths: int) -> Row:
    """A pack of whole documents `first`, `first` + 1, ..., their tokens all the document's id."""
    return {
        "tokens": [first + n for n, length in enumerate(lengths) for _ in range(length)],
        "position_ids": [position for length in lengths for position in range(length)],
        "cu_seqlens": [sum(lengths[:n]) for n in range(len(lengths) + 1)],
        "document_ids": [first + n for n in range(len(lengths))],
        "document_starts": [0] * len(lengths),
    }


ROWS = [
    row_of(0, 3, 4),
    row_of(2, 8),
    row_of(3, 1, 1, 1),
    row_of(6, 2),
    row_of(7, 5, 3),
    row_of(9, 4),
]


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


def rewrite(out: Path, shard: int, content: bytes) -> None:
    """Put other bytes in a shard's place.

    The manifest then agrees with their number, not with their digest.
    """
    manifest = read_manifest(out)
    (out / manifest.shards("train")[shard].path).write_bytes(content)
    files = [dict(entry) for entry in manifest.data["files"]]
    [entry for entry in files if "packs" in entry][shard]["bytes"] = len(content)
    write_manifest(out, {**manifest.data, "files": files}, manifest.run)


def test_packs_come_in_stored_order_across_batches_and_shards(out: Path) -> None:
    packs = PackedShards(out, verify=True)
    assert len(packs) == 6
    assert rows_of(packs) == ROWS
    assert [packs[index].tokens.tolist() for index in (5, 0, 3, 2)] == [
        ROWS[index]["tokens"] for index in (5, 0, 3, 2)
    ]
    assert packs[-1].tokens.tolist() == packs[5].tokens.tolist()
    assert packs[np.int64(4)].document_ids.tolist() == [7, 8]  # type: ignore[index, union-attr]


def test_there_is_no_pack_outside(out: Path) -> None:
    packs = PackedShards(out)
    for index in (6, -7):
        with pytest.raises(IndexError, match=rf"index {index} is out of range; .* has 6 packs"):
            packs[index]


def test_arrays_have_the_columns_types_and_are_views_of_the_file(out: Path) -> None:
    before = pa.total_allocated_bytes()
    packs = PackedShards(out)
    pack = packs[1]
    assert pa.total_allocated_bytes() == before
    for column in PLAIN:
        values = pack.columns[column.name]
        assert values.dtype == column.numpy_dtype
        assert not values.flags.owndata
        assert not values.flags.writeable
    shard = (out / shard_name(0, 4)).read_bytes()
    assert pack.tokens.tobytes() in shard


def test_views_outlive_the_reader_and_the_file_name(out: Path) -> None:
    tokens = PackedShards(out)[1].tokens
    shutil.rmtree(out)
    assert tokens.tolist() == [2] * 8


def test_segments_are_documents_with_their_tokens() -> None:
    pack = PackedShards(GOLDEN / "v1-example")[1]
    assert [
        (segment.document_id, segment.start, segment.tokens.tolist()) for segment in pack.segments()
    ] == [
        (0, 0, [1, 10, 2]),
        (1, 8, [27, 2]),
        (2, 0, [1, 30, 2]),
    ]


def test_segments_leave_padding_out_and_keep_filler_visible() -> None:
    pack = PackedShards(GOLDEN / "v1-rich", split="train")[0]
    assert [(segment.document_id, segment.tokens.tolist()) for segment in pack.segments()] == [
        (0, [5, 5, 5]),
        (1, [5, 5, 5, 5]),
        (-1, []),
    ]
    assert pack.labels is not None
    assert pack.labels.tolist() == rich_row(0, 3, 4)["labels"]
    assert pack.columns["weight"].dtype == np.float32


def test_columns_that_were_left_out_are_none_and_positions_are_made(tmp_path: Path) -> None:
    columns = [STANDARD_COLUMNS["tokens"], STANDARD_COLUMNS["cu_seqlens"]]
    write_output(tmp_path / "out", {"train": [ROWS]}, columns)
    for pack, row in zip(PackedShards(tmp_path / "out", verify=True), ROWS, strict=True):
        assert pack.position_ids.tolist() == row["position_ids"]
        assert pack.position_ids.dtype == np.int32
        assert (pack.document_ids, pack.document_starts, pack.labels, pack.segment_lengths) == (
            None,
        ) * 4
    first = next(PackedShards(tmp_path / "out")[0].segments())
    assert (first.document_id, first.start, first.tokens.tolist()) == (None, None, [0, 0, 0])


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=6), st.data()
)
def test_whatever_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]], data: st.DataObject
) -> None:
    rows = [row_of(n, *pack) for n, pack in enumerate(lengths)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    shards = [rows[first:last] for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    out = tmp_path_factory.mktemp("any") / "out"
    write_output(out, {"train": shards}, max_length=12, rows_per_batch=data.draw(st.integers(1, 3)))
    packs = PackedShards(out, verify=True)
    assert rows_of(packs) == rows
    index = data.draw(st.integers(-len(rows), len(rows) - 1))
    assert packs[index].tokens.tolist() == rows[index]["tokens"]


def test_a_split_is_chosen_by_name_or_by_its_directory(both: Path) -> None:
    assert rows_of(PackedShards(both, split="train")) == ROWS[:4]
    assert rows_of(PackedShards(both / "validation")) == ROWS[4:]
    assert (
        repr(PackedShards(both / "validation"))
        == f"PackedShards('{both}', split='validation': 2 packs, 12 tokens)"
    )
    with pytest.raises(
        ValueError,
        match="has the splits train, validation, and no split was chosen; pass split='train'",
    ):
        PackedShards(both)
    with pytest.raises(ValueError, match="split='test' was passed"):
        PackedShards(both, split="test")


def test_the_only_split_needs_no_name(out: Path) -> None:
    assert PackedShards(str(out)).split == "train"


def test_it_pickles_as_its_path(both: Path) -> None:
    packs = PackedShards(both, split="validation")
    assert packs[0].tokens.tolist() == ROWS[4]["tokens"]
    content = pickle.dumps(packs)
    assert len(content) < 500
    assert rows_of(pickle.loads(content)) == ROWS[4:]


def test_the_report_is_read_and_must_be_the_one_of_the_build(out: Path) -> None:
    packs = PackedShards(out)
    assert packs.report["packs"] == 6
    (out / "report.json").write_bytes(canonical_json(packs.report | {"packs": 7}))
    with pytest.raises(FormatError, match=r"report\.json has sha256"):
        packs.report  # noqa: B018


def test_a_report_that_is_not_json_is_a_sentence_too(out: Path) -> None:
    (out / "report.json").write_bytes(b"{")
    manifest = read_manifest(out)
    entry = {"path": "report.json", "bytes": 1, "sha256": file_digest(out / "report.json")}
    write_manifest(out, manifest.data, {"files": [entry]})
    with pytest.raises(FormatError, match=r"report\.json is not JSON"):
        PackedShards(out).report  # noqa: B018


def test_an_output_without_a_report_says_so(out: Path) -> None:
    manifest = read_manifest(out)
    write_manifest(out, manifest.data, {"files": []})
    with pytest.raises(FormatError, match=r"has no report\.json"):
        PackedShards(out).report  # noqa: B018


def test_a_directory_that_is_no_output_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match="does not exist; expected the output of a finished packprep build"
    ):
        PackedShards(tmp_path / "nothing")


def test_a_shard_that_is_missing_or_cut_is_found_at_open(out: Path) -> None:
    shard = out / shard_name(3, 4)
    content = shard.read_bytes()
    shard.write_bytes(content[:-8])
    with pytest.raises(
        FormatError, match=f"{shard.name} has {len(content) - 8} bytes; expected {len(content)}"
    ):
        PackedShards(out)
    shard.unlink()
    with pytest.raises(FormatError, match=f"{shard.name} is missing"):
        PackedShards(out)


def test_a_shard_with_other_columns_is_found_at_open(out: Path, tmp_path: Path) -> None:
    write_output(tmp_path / "rich", {"train": [[rich_row(0, 2)]]}, RICH)
    rewrite(out, 0, (tmp_path / "rich" / shard_name(0, 1)).read_bytes())
    with pytest.raises(
        FormatError,
        match=r"data-00000-of-00004\.arrow has the columns tokens, cu_seqlens, .*; expected",
    ):
        PackedShards(out)


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
    with pytest.raises(
        FormatError, match=r"data-00000-of-00004\.arrow is not a complete Arrow stream"
    ):
        PackedShards(out)[0]


def test_wrong_boundaries_are_found_as_the_pack_is_read(out: Path, tmp_path: Path) -> None:
    wrong = {**ROWS[1], "cu_seqlens": [0, 7]}
    write_output(tmp_path / "wrong", {"train": [[ROWS[0], wrong, ROWS[2]]]})
    rewrite(out, 0, (tmp_path / "wrong" / shard_name(0, 1)).read_bytes())
    packs = PackedShards(out)
    assert packs[0].tokens.tolist() == ROWS[0]["tokens"]
    with pytest.raises(
        FormatError,
        match=r"data-00000-of-00004\.arrow pack 1: cu_seqlens are \[0, 7\]; expected 0, rising",
    ):
        packs[1]


def test_a_list_of_the_wrong_length_is_found_as_the_pack_is_read(out: Path, tmp_path: Path) -> None:
    wrong = {**ROWS[3], "document_ids": [6, 7]}
    write_output(tmp_path / "wrong", {"train": [[wrong]]})
    rewrite(out, 2, (tmp_path / "wrong" / shard_name(0, 1)).read_bytes())
    with pytest.raises(
        FormatError,
        match=r"data-00002-of-00004\.arrow pack 0: document_ids has 2 values; expected 1",
    ):
        PackedShards(out)[3]


def test_verify_names_the_pack_of_a_value_that_reading_does_not_check(tmp_path: Path) -> None:
    rows = [*ROWS[:2], {**ROWS[2], "position_ids": [0, 0, 1]}]
    write_output(tmp_path / "out", {"train": [rows]})
    assert len([*PackedShards(tmp_path / "out")]) == 3
    with pytest.raises(
        FormatError, match=r"arrow pack 2 segment 2 token 0: position_ids has 1; expected 0"
    ):
        PackedShards(tmp_path / "out", verify=True)


def test_a_segment_length_that_leaves_its_segment_is_found_as_the_pack_is_read(
    tmp_path: Path,
) -> None:
    for number, real in enumerate(([3, 5, 0], [-1, 4, 0])):
        out = tmp_path / f"{number}"
        write_output(
            out, {"train": [[{**rich_row(0, 3, 4), "segment_lengths": real}]]}, RICH, max_length=12
        )
        with pytest.raises(
            FormatError,
            match=r"pack 0: a value of segment_lengths is below 0 or above",
        ):
            PackedShards(out)[0]


def test_verify_counts_segments(out: Path) -> None:
    manifest = read_manifest(out)
    counts = {**manifest.data["splits"]["train"], "segments": 12}
    write_manifest(out, {**manifest.data, "splits": {"train": counts}}, manifest.run)
    with pytest.raises(FormatError, match="holds 10 segments of train; the manifest says 12"):
        PackedShards(out, verify=True)


def test_verify_counts_tokens(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [[ROWS[0]], [ROWS[1]]]})
    manifest = read_manifest(tmp_path / "out")
    files = [dict(entry) for entry in manifest.data["files"]]
    files[0]["tokens"], files[1]["tokens"] = files[1]["tokens"], files[0]["tokens"]
    write_manifest(tmp_path / "out", {**manifest.data, "files": files}, manifest.run)
    with pytest.raises(FormatError, match="holds 7 tokens; the manifest says 8"):
        PackedShards(tmp_path / "out", verify=True)


def test_a_surplus_file_is_no_reason_not_to_read_but_a_finding(out: Path) -> None:
    # datasets puts caches here when somebody maps over the output
    (out / "cache-0123456789abcdef.arrow").touch()
    assert len(PackedShards(out, verify=True)) == 6
    (out / "surplus.arrow").touch()
    assert len(PackedShards(out)) == 6
    with pytest.raises(FormatError, match=r"surplus\.arrow is not in the manifest"):
        PackedShards(out, verify=True)


def test_verify_finds_a_flipped_bit_in_any_file(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v1-example", tmp_path / "out")
    for path in sorted((tmp_path / "out").iterdir()):
        content = path.read_bytes()
        for bit in range(0, 8 * len(content), 97):  # prime: every bit of a byte, all over the file
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            with pytest.raises(FormatError):
                PackedShards(tmp_path / "out", verify=True)
        path.write_bytes(content)
    assert len(PackedShards(tmp_path / "out", verify=True)) == 2


def test_reading_a_damaged_shard_unverified_gives_packs_or_a_format_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(GOLDEN / "v1-example", out)
    shard = out / shard_name(0, 1)
    content = shard.read_bytes()
    outcomes = {"read": 0, "refused": 0}
    for bit in range(0, 8 * len(content), 7):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        shard.unlink()  # a new file: the old one may still be mapped
        shard.write_bytes(changed)
        try:
            for pack in PackedShards(out):
                assert len(pack.position_ids) == len(pack.tokens)
                assert sum(len(segment.tokens) for segment in pack.segments()) == len(pack.tokens)
            outcomes["read"] += 1
        except FormatError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


def test_the_worked_example_is_what_datasets_reads_too() -> None:
    import datasets

    rows = datasets.load_from_disk(GOLDEN / "v1-example")
    assert [dict(row) for row in rows] == EXAMPLE == rows_of(PackedShards(GOLDEN / "v1-example"))


def test_follow_answers_with_the_way_that_serves_now(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out is finished, and leave follow out"):
        PackedShards(tmp_path / "out", follow=True)  # type: ignore[arg-type]
