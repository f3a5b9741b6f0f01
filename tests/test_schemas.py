"""Laws of the files of an output: the manifest, paths, views, and the checks of a batch."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas.columns import STANDARD, Column
from packprep.schemas.files import FormatError, check_path, digest_of, shard_name
from packprep.schemas.gather import Layout
from packprep.schemas.manifest import FORMAT_VERSION, manifest_json, parse_manifest
from packprep.schemas.validate import findings
from packprep.schemas.views import ListView, list_array, list_view
from packprep.write.layout import hf_column

COUNT = st.integers(0, 10**6)
N = -100
FIRST: list[float] = [0, 1, 2, 0, 1]  # positions of two packs
LAST: list[float] = [0, 0, 1]
NAMES = ("tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts")


@st.composite
def manifests(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Data and run of a manifest: shards with offsets of batches, draws of sources, a plan."""
    splits = draw(st.sampled_from([["train"], ["train", "validation"]]))
    files, counts = [], {}
    for split in splits:
        shards = draw(st.integers(1, 3))
        folder = f"{split}/" if len(splits) > 1 else ""
        numbers = [
            {key: draw(COUNT) for key in ("packs", "segments", "tokens")} for _ in range(shards)
        ]
        for at, each in enumerate(numbers):
            batches = draw(st.lists(st.tuples(COUNT, COUNT).map(list), max_size=3))
            path = folder + shard_name(at, shards)
            digest = {"bytes": draw(COUNT), "sha256": "0" * 64}
            files.append({"path": path, "split": split, **digest, **each, "batches": batches})
        counts[split] = {key: sum(each[key] for each in numbers) for key in numbers[0]}
    packed, dropped = sum(each["tokens"] for each in counts.values()), draw(COUNT)
    source = {"name": "a", "bytes": draw(COUNT), "digest": "x", "rows": draw(COUNT), "first_row": 0}
    token = {"path": "k/t", "bytes": 1, "digest": "x", "documents": draw(COUNT), "rows": 1}
    run = {"files": [{"path": "report.json", "bytes": 1, "sha256": "0" * 64}]}
    small = draw(st.sampled_from([(), ("tokens",), ("tokens", "position_ids")]))
    inputs = {"options": {"max_length": 64}, "draws": draw(COUNT)}
    data = {
        "format_version": FORMAT_VERSION,
        "identity": digest_of(inputs),
        "inputs": inputs,
        "columns": [vars(STANDARD[n]) | ({"dtype": "uint16"} if n in small else {}) for n in NAMES],
        "max_length": 64,
        "vocab_size": 100,
        "bos_id": 0,
        "pad_id": 0,
        "splits": counts,
        "files": files,
        "sources": [{**source, "drawn": draw(COUNT)}],
        "draw": {"seed": draw(st.none() | COUNT)},
        "ledger": {
            "tokens_in": packed + dropped,
            **dict.fromkeys(("overlap", "continuation_bos", "filler", "truncated"), 0),
            "tokens_packed": packed,
            "dropped": {"too_short": dropped},
        },
        "plan": draw(st.none() | st.just({"files": [token]})),
    }
    return data, {**run, "stores": {"k": {"path": "/s", "relative": "../s", "again": "a command"}}}


@given(manifests(), st.data())
def test_a_manifest_is_read_as_it_was_written_and_no_byte_may_change(
    parts: tuple[dict[str, Any], dict[str, Any]], data: st.DataObject
) -> None:
    content = manifest_json(*parts)
    manifest = parse_manifest(content, "m")
    assert (manifest.data, manifest.run) == parts
    shards = [file for file in manifest.files if file.split]
    assert [file.batches for file in shards] == [file["batches"] for file in parts[0]["files"]]
    at = data.draw(st.integers(0, len(content) - 1))
    changed = content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))])
    with pytest.raises(FormatError):
        parse_manifest(changed + content[at + 1 :], "m")


@given(manifests(), st.data())
def test_a_manifest_that_contradicts_itself_is_refused(
    parts: tuple[dict[str, Any], dict[str, Any]], data: st.DataObject
) -> None:
    values = parts[0]
    shard = data.draw(st.sampled_from(values["files"]))
    key, value = data.draw(
        st.sampled_from(
            [
                ("path", "../data.arrow"),
                ("path", "/data.arrow"),
                ("path", "report.json"),
                ("path", "data-7.arrow"),
                ("split", "other"),
                ("packs", shard["packs"] + 1),
                ("tokens", shard["tokens"] + 1),
                ("plan", {"files": []}),
                ("plan", {"files": [{"path": "../t"}]}),
            ]
        )
    )
    (values if key == "plan" else shard)[key] = value
    with pytest.raises(FormatError):
        manifest_json(*parts)


@given(manifests())
def test_a_manifest_without_one_of_its_keys_is_refused(
    parts: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    for key in parts[0]:
        with pytest.raises(FormatError):
            manifest_json({name: each for name, each in parts[0].items() if name != key}, parts[1])


@pytest.mark.parametrize(
    "path", ["", ".", "a/../b", "/a", "a//b", "a/", "./a", "a\\b", "c:a", "\0"]
)
def test_a_path_out_of_the_output_is_refused(path: str) -> None:
    with pytest.raises(FormatError):
        check_path(path)


def batch_of(hf: bool, **changed: list[list[float]]) -> tuple[pa.RecordBatch, Layout]:
    """Two packs: segments of 3 and 2 tokens, and of 1, 2 (filler) and their columns."""
    values: dict[str, list[list[float]]] = {
        "tokens": [[5, 6, 7, 8, 9], [5, 0, 0]],
        "position_ids": [FIRST, LAST],
        "cu_seqlens": [[0, 3, 5], [0, 1, 3]],
        "document_ids": [[0, 1], [0, -1]],
        "document_starts": [[0, 0], [3, 0]],
        "labels": [[N, 6, 7, N, N], [N, N, N]],
        "segment_lengths": [[3, 1], [1, 0]],
        "weight": [[0.5] * 5, [1.5] * 3],
    }
    columns = [*(STANDARD[name] for name in values if name != "weight")]
    if hf:
        columns = [hf_column(column) for column in columns]
        values["seq_lengths"] = [[3, 2], [1, 2]]
    columns.append(Column(name="weight", kind="token", dtype="float32"))
    arrays = []
    for column in columns:
        rows = changed.get(column.standard, values[column.standard])
        offsets = np.append(0, np.cumsum([len(row) for row in rows])).astype(np.int32)
        flat = np.array([value for row in rows for value in row], column.dtype)
        arrays.append(list_array(ListView(offsets, flat)))
    layout = Layout(columns=tuple(columns), max_length=8, vocab_size=10, bos_id=0, pad_id=0)
    return pa.record_batch(arrays, names=[column.name for column in columns]), layout


@pytest.mark.parametrize("hf", [False, True])
def test_a_sound_batch_has_no_findings(hf: bool) -> None:
    assert [*findings(*batch_of(hf), "f")] == []


@pytest.mark.parametrize(
    ("kind", "place", "hf", "changed"),
    [
        ("token id", "pack 0 segment 1 token 1", False, {"tokens": [[5, 6, 7, 8, 10], [5, 0, 0]]}),
        ("token id", "pack 1 segment 0 token 0", True, {"tokens": [[5, 6, 7, 8, 9], [-1, 0, 0]]}),
        ("position", "pack 0 segment 0 token 1", False, {"position_ids": [[0, 2, 1, 0, 1], LAST]}),
        ("position", "pack 1 segment 1 token 0", True, {"position_ids": [FIRST, [0, 1, 2]]}),
        ("damaged", "pack 1", False, {"cu_seqlens": [[0, 3, 5], [0]]}),
        ("damaged", "pack 0", True, {"seq_lengths": [[], [1, 2]]}),
        ("boundaries", "pack 1 segment 0", False, {"cu_seqlens": [[0, 3, 5], [0, 0, 3]]}),
        ("boundaries", "pack 1 segment 0", False, {"cu_seqlens": [[0, 3, 5], [1, 2, 3]]}),
        ("boundaries", "pack 1", False, {"cu_seqlens": [[0, 3, 5], [0, 1, 2]]}),
        ("boundaries", "pack 0", True, {"seq_lengths": [[3, 1], [2, 2]]}),
        ("boundaries", "pack 1", False, {"labels": [[N, 6, 7, N, N], [N, N]]}),
        ("boundaries", "pack 0", False, {"document_ids": [[0, 1, 2], [-1]]}),
        ("document", "pack 1 segment 0", False, {"document_ids": [[0, 1], [-1, 0]]}),
        ("document", "pack 0 segment 1", False, {"document_ids": [[0, -2], [0, -1]]}),
        ("document", "pack 1 segment 1", True, {"segment_lengths": [[3, 1], [1, 3]]}),
        ("document", "pack 1 segment 1", False, {"document_starts": [[0, 0], [3, 1]]}),
        ("document", "pack 0 segment 1", False, {"segment_lengths": [[3, 3], [1, 0]]}),
        ("document", "pack 0 segment 0", False, {"segment_lengths": [[0, 1], [1, 0]]}),
        ("label", "pack 1 segment 0", False, {"labels": [[N, 6, 7, N, N], [5, N, N]]}),
        ("label", "pack 0 segment 0 token 2", True, {"labels": [[N, 6, 10, N, N], [N] * 3]}),
        ("padding", "pack 0 segment 1", False, {"labels": [[N, 6, 7, N, 9], [N] * 3]}),
        ("padding", "pack 1 segment 1", False, {"labels": [[N, 6, 7, N, N], [N, N, 0]]}),
        ("not finite", "pack 1 segment 1 token 1", True, {"weight": [[0.5] * 5, [1, 1, np.nan]]}),
    ],
)  # fmt: skip
def test_a_wrong_value_is_found_with_its_place(
    kind: str, place: str, hf: bool, changed: dict[str, list[list[float]]]
) -> None:
    found = [*findings(*batch_of(hf, **changed), "f", 7)]
    first = f"f {place.replace('pack 1', 'pack 8').replace('pack 0', 'pack 7')}"
    assert [(each.kind, each.what.startswith(first)) for each in found][:1] == [(kind, True)]


@given(st.lists(st.integers(-2, 4), min_size=3, max_size=3))
def test_offsets_out_of_the_values_are_refused(offsets: list[int]) -> None:
    memory = np.array([0, 2, 3], np.int32)
    buffers = [None, pa.py_buffer(memory.data)]
    values = pa.array([1, 2, 3], pa.int32())
    column = pa.Array.from_buffers(pa.list_(pa.int32()), 2, buffers, children=[values])
    batch = pa.record_batch([column], names=["a"])
    memory[:] = offsets
    if offsets == sorted(offsets) and offsets[0] >= 0 and offsets[-1] <= 3:
        assert list_view(batch, "a", "f").flat.tolist() == [1, 2, 3][offsets[0] : offsets[-1]]
    else:
        with pytest.raises(FormatError):
            list_view(batch, "a", "f")
