"""Exports: what other trainers' readers find in them, and documents put together from pieces."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.cli.main import cli
from packprep.schemas.columns import STANDARD
from packprep.schemas.files import FormatError
from packprep.schemas.manifest import open_output, packs
from packprep.support.errors import ConfigError
from tests.helpers import written
from tests.helpers.examples import share_of_examples
from tests.helpers.export_readers import READERS, ReadPack, pack_of, read_npy
from tests.helpers.torch_models import skip_without

WITHOUT_PADDING = ("megatron", "npy")
NAMES = ("hf", "axolotl", "llama-factory", "megatron", "megatron-bridge", "npy", "parquet")
COLUMNS = (*written.COLUMNS, STANDARD["document_starts"], STANDARD["labels"])


def export(source: Path, to: str, out: Path) -> Path:
    """The folder of an export."""
    command = ["export", str(source), "--to", to, "-o", str(out), "-q"]
    cli.main(command, standalone_mode=False)
    return out


def rows_of(source: Path) -> Iterator[dict[str, Any]]:
    """The packs of an output, with standard names."""
    output = open_output(source)
    names = [*output.manifest.columns]
    for part in packs(output):
        yield from part.batch.rename_columns(names).to_pylist()


def stored(source: Path, to: str) -> list[ReadPack]:
    """The packs of an output, as far as a format has them: some have no padding."""
    made = []
    for row in rows_of(source):
        cu, labels, parts = row["cu_seqlens"], row.get("labels", row["tokens"]), []
        real = row.get("segment_lengths", np.diff(cu))
        for (first, last), size, document in zip(
            pairwise(cu), real, row["document_ids"], strict=True
        ):
            end = first + size if to in WITHOUT_PADDING else last
            if document >= 0 or to not in WITHOUT_PADDING:
                parts.append((row["tokens"][first:end], [-100, *labels[first + 1 : end]]))
        if parts:
            made.append(pack_of(*map(list, zip(*parts, strict=True))))
    return made


def read(folder: Path, to: str) -> list[ReadPack]:
    if to == "npy":
        (folder / "export.json").write_text(
            json.dumps({"data": json.loads((folder / "export.json").read_bytes())})
        )
        return read_npy(folder, "train")
    if to == "hf":
        rows = datasets.load_from_disk(str(folder))["train"]
        for row in rows:
            lengths = row.pop("seq_lengths")
            assert row["position_ids"] == [place for size in lengths for place in range(size)]
        return READERS["axolotl"](folder, "train")
    return READERS[to](folder, "train")


@st.composite
def shards(draw: st.DrawFn, padded: bool, hides: bool) -> list[list[written.Pack]]:
    """Shards of packs; padded: segments may end in padding, and packs in filler."""
    made, document = list[list[written.Pack]](), 0
    for count in draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)):
        made.append([])
        for _ in range(count):
            real = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
            more = [draw(st.integers(0, 3)) if padded else 0 for _ in real]
            filler = draw(st.integers(0, 3)) if padded else 0
            lengths = [a + b for a, b in zip(real, more, strict=True)] + [filler] * (filler > 0)
            pack = written.pack(*lengths, document=document)
            document += len(real)
            trained = [not hides or draw(st.booleans()) for _ in pack["tokens"]]
            labels = np.where(trained, pack["tokens"], -100)
            for end, length, size in zip(np.cumsum(lengths), lengths, [*real, 0], strict=False):
                labels[end - length] = -100
                labels[end - length + size : end] = -100
            pack |= {"labels": labels, "document_starts": np.zeros(len(lengths), int)}
            pack["segment_lengths"] = [*real, *[0] * (filler > 0)]
            pack["document_ids"][len(real) :] = -1
            made[-1].append(pack)
    return made


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("names", [NAMES, ["trl"]])
@settings(max_examples=share_of_examples(8))
@given(data=st.data())
def test_any_packs_arrive(
    names: Sequence[str],
    padded: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    if "trl" in names:
        skip_without("torch", "trl")
    folder, hides = tmp_path_factory.mktemp("any"), data.draw(st.booleans())
    columns = (*COLUMNS, *[STANDARD["segment_lengths"]] * padded)
    source = written.write(folder / "in", data.draw(shards(padded, hides)), columns)
    for to in names:
        if to != "megatron" or not hides:
            assert read(export(source, to, folder / to), to) == stored(source, to)


MIX: dict[str, Any] = {"max_tokens": 1500, "weight": 1, "max_epochs": 3}
BUILDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stride": {"stride": 3},
    "bos again": {"continuation_bos": True, "bos": "7"},
    "wrapped": {"strategy": "wrapped"},
    "from the end": {"overflow": "truncate:left"},
    "padded": {"pad_to_multiple": 4, "multiple": "4:fill"},
    "masked": {"ids": "ids,mask:mask", "stride": 2},
    "a mix": MIX,
    "a wrapped mix": {**MIX, "strategy": "wrapped"},
}


def _build(folder: Path, rows: Sequence[Any], **options: Any) -> Path:
    """An output of rows of ids in packs of 16."""
    folder.mkdir()
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source: dict[str, Any] = {n: options.pop(n) for n in ("weight", "max_epochs") if n in options}
    sources = [{"path": str(folder / "in.jsonl"), **source}]
    same: dict[str, Any] = {"sources": sources, "tokenizer": 50257, "max_length": 16, "ids": "ids"}
    (folder / "in.yaml").write_text(json.dumps(same | options))
    command = ["build", "-c", str(folder / "in.yaml"), "-o", str(folder / "out"), "-q"]
    cli.main(command, standalone_mode=False)
    return folder / "out"


def _rows(folder: Path) -> list[Any]:
    """Rows of an export, as its format is read."""
    if (folder / "state.json").exists():
        return [*datasets.load_from_disk(str(folder))]
    if parquet := sorted(folder.glob("*.parquet")):
        return [row for path in parquet for row in pq.read_table(path).to_pylist()]
    lines = [path.read_text().splitlines() for path in sorted(folder.glob("*.jsonl"))]
    return [json.loads(line) for of_file in lines for line in of_file]


@pytest.mark.parametrize("name", BUILDS)
def test_rows_are_the_documents_of_the_packs(name: str, tmp_path: Path) -> None:
    draw, options = np.random.default_rng(0), BUILDS[name]
    ids = [draw.integers(10, 50_000, length).tolist() for length in draw.integers(1, 60, 30)]
    masks = [draw.integers(0, 2, len(each)).tolist() for each in ids]
    rows = [
        {"ids": a, "mask": b} if name == "masked" else {"ids": a}
        for a, b in zip(ids, masks, strict=True)
    ]
    source = _build(tmp_path / "in", rows, **options)
    made = _rows(export(source, "rows", tmp_path / "out") / "train")
    for to in ("rows-parquet", "rows-jsonl"):
        assert _rows(export(source, to, tmp_path / to) / "train") == made
    packed, trained, found = Counter[Any](), Counter[Any](), Counter[Any]()
    for pack in rows_of(source):
        labels = pack.get("labels", pack["tokens"])
        real = pack.get("segment_lengths", np.diff(pack["cu_seqlens"]))
        for place, size, document, start in zip(
            pack["cu_seqlens"], real, pack["document_ids"], pack["document_starts"], strict=False
        ):
            bos = bool(start and options.get("continuation_bos"))
            for at in range(bos, size if document >= 0 else 0):
                key = (document, start + at - bos, pack["tokens"][place + at])
                packed[key] += 1
                trained[key] += at > 0 and labels[place + at] != -100
    for row in made:
        assert len(row["input_ids"]) == len(row["loss_mask"]) > 0
        for at, (token, mask) in enumerate(zip(row["input_ids"], row["loss_mask"], strict=True)):
            key = (row["document_id"], row["document_start"] + at, token)
            found[key] += 1
            if not options.get("max_tokens"):
                assert mask == (trained[key] > 0)
    if options.get("stride"):
        packed = Counter(dict.fromkeys(packed, 1))
    assert found == packed
    whole = [row for row in made if row["document_start"] == 0]
    if "truncate:left" not in options.values():
        assert {row["document_id"] for row in made} == {row["document_id"] for row in whole}


def test_a_store_becomes_the_documents_that_megatron_trains(tmp_path: Path) -> None:
    texts = tmp_path / "in.jsonl"
    ids = [[5, 6, 7], [8], list(range(10, 40))]
    texts.write_text("".join(json.dumps({"ids": each}) + "\n" for each in ids))
    ends = ["--ids", "ids", "--tokenizer", "65500", "--bos", "1", "--eos", "2", "-q"]
    command = ["tokenize", str(texts), "-o", str(tmp_path / "store"), *ends]
    cli.main(command, standalone_mode=False)
    out = export(tmp_path / "store", "megatron", tmp_path / "out")
    documents = READERS["megatron"](out, "train")
    assert [pack.tokens for pack in documents] == [[1, *each, 2] for each in ids]
    assert all(len(pack.cu_seqlens) == 2 for pack in documents)
    assert next(out.rglob("*.idx")).read_bytes()[17] == 4  # int32, as Megatron from 65,500 ids on
    with pytest.raises(ConfigError, match="token store, which to megatron alone takes"):
        export(tmp_path / "store", "npy", tmp_path / "other")


def test_an_export_is_absent_or_complete(tmp_path: Path) -> None:
    rows = [{"ids": list(range(5, 60))}] * 20
    source = written.build(tmp_path / "in", rows, max_length=16, shard_size=4000)
    *_, last = sorted(source.glob("*.arrow"))
    content = last.read_bytes()
    before = sorted(tmp_path.iterdir())
    last.write_bytes(content[:-100] + b"\1" + content[-99:])
    for to in NAMES:
        with pytest.raises(FormatError, match=last.name):
            export(source, to, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before
    last.write_bytes(content)
    export(source, "npy", tmp_path / "out")
    with pytest.raises(ConfigError, match="out is there already"):
        export(source, "npy", tmp_path / "out")


def test_what_a_format_cannot_say_is_refused(tmp_path: Path) -> None:
    pack = {**written.pack(3), "document_starts": [0], "labels": [-100, 9, 2]}
    other = written.write(tmp_path / "other", [[pack]], COLUMNS)
    hidden = written.write(tmp_path / "hidden", [[{**pack, "labels": [-100, -100, 2]}]], COLUMNS)
    for to, source, found in (
        *((to, other, "labels that are other ids") for to in ("megatron", "npy", "rows")),
        ("megatron", hidden, "tokens without loss"),
        ("rows", written.write(tmp_path / "few", [[pack]]), "no column document_starts"),
        ("tfrecord", hidden, "tfrecord"),
    ):
        with pytest.raises(ConfigError, match=found):
            export(source, to, tmp_path / "out")


def test_megatrons_own_reader_finds_the_segments_of_each_pack(tmp_path: Path) -> None:
    megatron: Any = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    rows = [{"ids": list(range(5, 5 + length))} for length in range(1, 40)]
    source = written.build(tmp_path / "in", rows, max_length=16)
    out = export(source, "megatron", tmp_path / "out")
    dataset = megatron.IndexedDataset(str(out / "train"))
    found = [
        pack_of([dataset[number].tolist() for number in range(first, last)])
        for first, last in pairwise(dataset.document_indices.tolist())
    ]
    assert found == stored(source, "megatron")


def test_numpy_and_datasets_open_the_files(tmp_path: Path) -> None:
    rows = [{"ids": list(range(5, 5 + length))} for length in range(1, 40)]
    source = written.build(tmp_path / "in", rows, max_length=16)
    out = export(source, "npy", tmp_path / "npy")
    offsets = np.load(out / "train.offsets.npy")
    assert offsets[-1] == len(np.memmap(out / "train.npy", np.uint16))
    out = export(source, "parquet", tmp_path / "parquet")
    opened: Any = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    assert opened["train"].to_list() == [*rows_of(source)]
