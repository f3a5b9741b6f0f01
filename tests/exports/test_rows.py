"""Documents of an output as rows, put together from their segments."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import load_from_disk

from packprep import BuildConfig, build
from packprep.derive.merge import merge
from packprep.exports import documents as documents_module
from packprep.exports.export import export
from packprep.exports.packs import PackBatch, read_packs
from packprep.loaders import PackedShards
from packprep.schemas.columns import STANDARD_COLUMNS
from packprep.support.errors import ConfigError
from tests.helpers.corpus import write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import bytes_in
from tests.helpers.tiny_shards import PLAIN, write_output
from tests.helpers.torch_models import tiny_llama
from tests.helpers.zoo import Zoo

SMALL: dict[str, Any] = {"max_length": 32, "unit_size": 2_000, "window": 8_000, "num_proc": 1}
IDS: dict[str, Any] = {
    **SMALL,
    "input_ids_column": "ids",
    "labels_column": "mask:mask",
    "carry": ("weight:float32",),
    "vocab_size": 64,
    "shard_size": 6_000,
    "min_loss_tokens": 0,
    "min_document_tokens": 1,
}
MIX: dict[str, Any] = {"max_epochs": 3.0, "max_tokens": 9_000}
PHASES = [{"tokens": 4000, "max_length": 16}, {"tokens": 4000, "max_length": 48}]


def token_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of 2 to 100 ids; each row begins with its number, so no two are equal."""
    draw, rows = random.Random(seed), []
    for row in range(count):
        ids = [row % 64, row // 64, *draw.choices(range(64), k=draw.randrange(98))]
        rows.append(
            {
                "ids": ids,
                "mask": [draw.randrange(2) for _ in ids],
                "weight": [float(place) for place in range(len(ids))],
            }
        )
    return rows


def built(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    source: Any = str(write_jsonl(folder / "a.jsonl", rows))
    if "max_epochs" in options:
        source = {"path": source, "label": "a", "weight": 1}
    build(BuildConfig(sources=(source,), output=str(folder / "packed"), **IDS | options))
    return folder / "packed"


def as_rows(directory: Path, split: str = "train") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load_from_disk(str(directory))[split].to_list()
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 5, "materialize": "index"},
        {"strategy": "wrapped", "names": "hf"},
        {"epochs": 2, "stride": 7, "train_overlap": True},
        {"strategy": "wrapped", **MIX},
        {"stride": 3, **MIX},
        {"phases": PHASES, "max_epochs": 3.0},
        {"overflow": "truncate", "token_type": "uint16"},
        {"overflow": "truncate:left"},
        {"pad_segment_to_multiple": 8, "min_loss_tokens": 9},
    ],
    ids=str,
)
def test_rows_are_the_documents_of_the_packs(options: dict[str, Any], tmp_path: Path) -> None:
    rows = token_rows(150)
    source = built(tmp_path, rows, **options)
    epoch = 1 if "epochs" in options else None
    export(source, str(tmp_path / "rows"), "rows", epoch=epoch)
    packs = [*PackedShards(source, epoch=epoch or 0)]
    segments = [each for pack in packs for each in pack.segments() if each.document_id != -1]
    begins = {(each.document_id, each.start) for each in segments}
    exported = as_rows(tmp_path / "rows")
    for row in exported:
        number, begin, size = row["document_id"], row["document_start"], len(row["input_ids"])
        for name, stored in (("ids", "input_ids"), ("weight", "weight")):
            assert row[stored] == rows[number][name][begin : begin + size]
        for place, mask in enumerate(row["loss_mask"], begin):
            repeated = place > begin and "stride" in options
            assert mask == rows[number]["mask"][place] or (
                not (mask or repeated) and (number, place) in begins
            )
    if not options.keys() & {"overflow", "min_loss_tokens"}:  # each copy is whole
        copies = Counter(each.document_id for each in segments if not each.start)
        assert Counter(row["document_id"] for row in exported) == copies
        assert all(row["input_ids"] == rows[row["document_id"]]["ids"] for row in exported)
    if "stride" not in options:
        of_rows = [
            (row["document_id"], row["document_start"], row["input_ids"]) for row in exported
        ]
        assert _places(of_rows) == _places(segments)
        trained = sum(int((pack.labels != -100).sum()) for pack in packs)
        assert sum(sum(row["loss_mask"]) for row in exported) == trained


def _places(segments: Iterable[tuple[int, int, Any]]) -> Counter[tuple[int, int]]:
    """Number of times that each token of each document is in these segments."""
    return Counter(
        (document, start + place)
        for document, start, tokens in segments
        for place in range(len(tokens))
    )


def test_a_repeated_bos_is_not_a_token_of_the_document(zoo: Zoo, tmp_path: Path) -> None:
    made: dict[str, Any] = {"sources": (str(zoo.source("text")),), "tokenizer": str(zoo.tokenizer)}
    cut = {**made, **SMALL, "continuation_bos": True, "output": str(tmp_path / "cut")}
    build(BuildConfig(**cut))
    build(BuildConfig(**made, max_length=4096, output=str(tmp_path / "whole")))
    export(tmp_path / "cut", str(tmp_path / "rows"), "rows")
    rows = {row["document_id"]: row["input_ids"] for row in as_rows(tmp_path / "rows")}
    whole = {
        segment.document_id: segment.tokens.tolist()
        for pack in PackedShards(tmp_path / "whole")
        for segment in pack.segments()
    }
    assert rows == whole


@pytest.mark.parametrize(
    ("member", "column", "field"),
    [("pairs", "pair_sides", "pair_side"), ("turns", "turn_ids", "turn_id")],
)
def test_each_side_of_a_pair_and_each_turn_is_a_row(
    member: str, column: str, field: str, zoo: Zoo, tmp_path: Path
) -> None:
    export(zoo[member], str(tmp_path / "rows"), "rows")
    expected: dict[Any, list[Any]] = {}
    for pack in PackedShards(zoo[member], split="train"):
        for segment, number in zip(pack.segments(), pack.columns[column].tolist(), strict=True):
            expected.setdefault((segment.document_id, number), []).append(segment)
    exported = {(row["document_id"], row[field]): row for row in as_rows(tmp_path / "rows")}
    assert exported.keys() == expected.keys()
    for key, segments in expected.items():
        in_order = sorted(segments, key=lambda segment: segment.start)
        assert exported[key]["input_ids"] == [token for each in in_order for token in each.tokens]


def test_rows_of_trees_have_their_prefix_and_carried_values(zoo: Zoo, tmp_path: Path) -> None:
    with refused(ConfigError, "give unshared"):
        export(zoo["trees"], str(tmp_path / "rows"), "rows")
    export(zoo["trees"], str(tmp_path / "rows"), "rows", unshared=True)
    answers = [json.loads(line) for line in zoo.source("trees").read_text().splitlines()]
    exported = sorted(as_rows(tmp_path / "rows"), key=lambda row: int(row["document_id"]))
    for row in exported:
        answer = answers[row["document_id"]]
        assert row["input_ids"] == answer["ids"][row["document_start"] :][: len(row["input_ids"])]
        assert row["quality"] == answer["quality"]
    assert len({row["document_id"] for row in exported}) == len(answers)


def test_parquet_and_json_lines_hold_the_same_rows(zoo: Zoo, tmp_path: Path) -> None:
    for to in ("rows", "rows-parquet", "rows-jsonl"):
        export(zoo["split"], str(tmp_path / to), to)
    for split in ("train", "validation"):
        exported = as_rows(tmp_path / "rows", split)
        folder = tmp_path / "rows-parquet" / split
        assert [row for path in sorted(folder.iterdir()) for row in _parquet(path)] == exported
        folder = tmp_path / "rows-jsonl" / split
        lines = [
            line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()
        ]
        assert [json.loads(line) for line in lines] == exported


def _parquet(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("killed_at", [1, 3])
def test_a_killed_export_of_rows_resumes_with_the_pieces_that_waited(
    killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [[_piece(0, 0)], [_piece(1, 0)], [_piece(0, 3)], [_piece(1, 3), _piece(2, 0)]]
    shards.append([_piece(0, 6)])
    write_output(tmp_path / "in", {"train": shards}, max_length=3)
    export(tmp_path / "in", str(tmp_path / "whole"), "rows-jsonl")

    def dying(reader: Any, entry: Any) -> Iterator[PackBatch]:
        if entry.path.startswith(f"data-{killed_at:05d}"):
            raise Killed
        return read_packs(reader, entry)

    with monkeypatch.context() as patched:
        patched.setattr(documents_module, "read_packs", dying)
        with pytest.raises(Killed):
            export(tmp_path / "in", str(tmp_path / "out"), "rows-jsonl")
    export(tmp_path / "in", str(tmp_path / "out"), "rows-jsonl")
    files = bytes_in(tmp_path / "out", without="export.json")
    assert files == bytes_in(tmp_path / "whole", without="export.json")
    lines = b"".join(files[name] for name in sorted(files)).splitlines()
    ids = {row["document_id"]: row["input_ids"] for row in map(json.loads, lines)}
    assert ids == {
        0: [10, 11, 12, 13, 14, 15, 16, 17, 18],
        1: [10, 11, 12, 13, 14, 15],
        2: [10, 11, 12],
    }


def _piece(document: int, start: int) -> dict[str, list[int]]:
    """A pack of one piece of three tokens."""
    return {
        "tokens": [10 + start, 11 + start, 12 + start],
        "position_ids": [0, 1, 2],
        "cu_seqlens": [0, 3],
        "document_ids": [document],
        "document_starts": [start],
    }


def test_what_rows_cannot_express_is_refused(tmp_path: Path) -> None:
    rows = token_rows(20)
    source = built(tmp_path, rows, columns=("position_ids",))
    with refused(ConfigError, "no document_ids", "without columns"):
        export(source, str(tmp_path / "out"), "rows")
    taken = [{**row, "loss_mask": 1} for row in rows]
    source = built(tmp_path, taken, carry=("loss_mask",), overwrite=True)
    with refused(ConfigError, "carried column loss_mask"):
        export(source, str(tmp_path / "out"), "rows")
    # Only earlier builds took such labels.
    earlier = [[_piece(0, 0) | {"labels": [-100, 7, 7]}]]
    columns = (*PLAIN, STANDARD_COLUMNS["labels"])
    write_output(tmp_path / "earlier", {"train": earlier}, columns, max_length=3)
    with refused(ConfigError, "labels that are other ids"):
        export(tmp_path / "earlier", str(tmp_path / "out"), "rows")
    parts = []
    for name, stride in (("a", 0), ("b", 4)):
        (tmp_path / name).mkdir()
        parts.append(built(tmp_path / name, rows, stride=stride))
    merge(parts, tmp_path / "merged")
    with refused(ConfigError, "merged", "cut documents in different ways"):
        export(tmp_path / "merged", str(tmp_path / "out"), "rows")


@pytest.mark.filterwarnings("ignore")  # of the libraries' own making
def test_trl_packs_the_rows_with_their_masks(tmp_path: Path) -> None:
    trl: Any = pytest.importorskip("trl")
    from tests.helpers.recipes import tokenizer

    rows = token_rows(40)
    export(built(tmp_path, rows), str(tmp_path / "rows"), "rows")
    dataset: Any = load_from_disk(str(tmp_path / "rows"))["train"]
    trainer = trl.SFTTrainer(
        tiny_llama(),
        trl.SFTConfig(
            str(tmp_path / "out"), packing=True, max_length=128, use_cpu=True, bf16=False
        ),
        train_dataset=dataset.rename_column("loss_mask", "assistant_masks"),
        processing_class=tokenizer(),
    )
    read = []
    for pack in trainer.train_dataset:
        for end, size in zip(accumulate(pack["seq_lengths"]), pack["seq_lengths"], strict=True):
            read.append(
                tuple(tuple(pack[name][end - size : end]) for name in ("input_ids", "labels"))
            )
    expected = [
        (tuple(ids), tuple(token if mask else -100 for token, mask in zip(ids, masks, strict=True)))
        for ids, masks in zip(dataset["input_ids"], dataset["loss_mask"], strict=True)
    ]
    assert len(trainer.train_dataset) < len(expected) == 40
    assert Counter(read) == Counter(expected)
