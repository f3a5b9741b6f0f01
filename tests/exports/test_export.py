import json
import shutil
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.config.spellings import GONE_FORMATS
from packprep.exports import export as export_module
from packprep.exports import mds
from packprep.exports.export import export
from packprep.exports.packs import PackBatch, read_packs
from packprep.exports.registry import EXPORT_FORMATS
from packprep.schemas import STANDARD_COLUMNS
from packprep.schemas.errors import FormatError
from packprep.schemas.storage.export_manifest import EXPORT, read_export
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError
from packprep.tokens.checked_output import CheckedOutput
from tests.helpers.command import run
from tests.helpers.export_readers import READERS, ReadPack, stored_packs
from tests.helpers.planted import seal
from tests.helpers.tiny_shards import (
    EXAMPLE,
    GOLDEN,
    PLAIN,
    RICH,
    Row,
    rich_row,
    write_golden,
    write_output,
)

LABELED = (*PLAIN, STANDARD_COLUMNS["labels"])
IN_ORDER = sorted(READERS)


def row(segments: Sequence[Sequence[int]], labels: Sequence[int] | None = None) -> Row:
    """A pack of these segments."""
    tokens = [token for segment in segments for token in segment]
    return {
        "tokens": tokens,
        "position_ids": [place for segment in segments for place in range(len(segment))],
        "cu_seqlens": [0, *accumulate(map(len, segments))],
        "document_ids": list(range(len(segments))),
        "document_starts": [0] * len(segments),
        "labels": labels if labels is not None else tokens,
    }


def files_of(directory: Path) -> dict[str, bytes]:
    """Content of every file but export.json, which has the seconds of the run."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != EXPORT
    }


@pytest.mark.parametrize("to", IN_ORDER)
def test_every_format_gives_the_packs_of_the_example(to: str, tmp_path: Path) -> None:
    write_golden(tmp_path)
    export(tmp_path / "v1-example", str(tmp_path / "out"), to)
    assert READERS[to](tmp_path / "out", "train") == [
        ReadPack([1, 20, 21, 22, 23, 24, 25, 26], [0, 8], [-100, 20, 21, 22, 23, 24, 25, 26]),
        ReadPack([1, 10, 2, 27, 2, 1, 30, 2], [0, 3, 5, 8], [-100, 10, 2, -100, 2, -100, 30, 2]),
    ]


@pytest.mark.parametrize("to", IN_ORDER)
def test_labels_padding_filler_and_splits_arrive(to: str, tmp_path: Path) -> None:
    write_golden(tmp_path)
    source = tmp_path / "v1-rich"
    result = export(source, str(tmp_path / "out"), to)
    for split, packs in (("train", 4), ("validation", 1)):
        assert len(expected := stored_packs(source, split, to)) == packs
        assert READERS[to](tmp_path / "out", split) == expected
    # [3, 4], [1], [4, 2], [2] tokens, each padded to a multiple of 4, and 4 of filler in each pack.
    assert result.splits["train"] == {"packs": 4, "segments": 10, "tokens": 16, "padding": 24}


@pytest.mark.parametrize("to", IN_ORDER)
def test_an_output_with_the_names_of_hugging_face_gives_the_same_packs(
    to: str, tmp_path: Path
) -> None:
    source = GOLDEN / "v1-hf"
    export(source, str(tmp_path / "out"), to)
    assert len(packs := READERS[to](tmp_path / "out", "train")) > 0
    assert packs == stored_packs(source, "train", to)


segments = st.lists(st.lists(st.integers(0, 31), min_size=1, max_size=9), min_size=1, max_size=5)


@st.composite
def padded_rows(draw: st.DrawFn) -> list[Row]:
    """Packs whose segments end in padding, some only of filler; every real token is trained."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 4))):
        real = draw(st.lists(st.integers(1, 8), max_size=3))
        fillers = draw(st.integers(0 if real else 1, 2))
        sizes = [size + draw(st.integers(0, 3)) for size in real] + [4] * fillers
        lengths = real + [0] * fillers
        tokens = [[3 + place for place in range(size)] for size in sizes]
        labels = [
            [*segment[:length], *[-100] * (len(segment) - length)]
            for segment, length in zip(tokens, lengths, strict=True)
        ]
        ids = [*range(len(real)), *[-1] * fillers]
        made = row(tokens, [label for segment in labels for label in segment])
        rows.append({**made, "document_ids": ids, "segment_lengths": lengths})
    return rows


@pytest.mark.parametrize("to", IN_ORDER)
@settings(max_examples=15, deadline=None)
@given(rows=padded_rows())
def test_padded_packs_whose_tokens_are_all_trained_arrive_in_every_format(
    to: str, rows: list[Row], tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("padded")
    columns = (*LABELED, STANDARD_COLUMNS["segment_lengths"])
    write_output(folder / "source", {"train": [rows]}, columns, max_length=45)
    export(folder / "source", str(folder / "out"), to)
    assert READERS[to](folder / "out", "train") == stored_packs(folder / "source", "train", to)


@pytest.mark.parametrize("to", IN_ORDER)
@settings(max_examples=15, deadline=None)
@given(shards=st.lists(st.lists(segments, max_size=4), min_size=1, max_size=3), data=st.data())
def test_any_packs_arrive(
    to: str, shards: list[list[list[list[int]]]], data: st.DataObject, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    columns = PLAIN if to == "megatron" or data.draw(st.booleans()) else LABELED
    rows: list[list[Row]] = []
    for shard in shards:
        rows.append([])
        for pack in shard:
            tokens = [token for segment in pack for token in segment]
            trained = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
            labels = [token if keep else -100 for token, keep in zip(tokens, trained, strict=True)]
            rows[-1].append(row(pack, labels))
    write_output(folder / "source", {"train": rows}, columns, max_length=45)
    export(folder / "source", str(folder / "out"), to)
    assert READERS[to](folder / "out", "train") == stored_packs(folder / "source", "train", to)


def test_bin_idx_has_uint16_below_65500_ids_and_int32_from_there(tmp_path: Path) -> None:
    for vocab_size, code, width in ((65499, 8, 2), (65500, 4, 4)):
        source, out = tmp_path / f"in-{vocab_size}", tmp_path / f"out-{vocab_size}"
        write_output(source, {"train": [EXAMPLE]}, vocab_size=vocab_size)
        export(source, str(out), "megatron")
        assert struct.unpack_from("<B", (out / "train.idx").read_bytes(), 17) == (code,)
        assert (out / "train.bin").stat().st_size == 16 * width


def test_flat_ids_are_uint16_up_to_65536_ids_and_uint32_from_there(tmp_path: Path) -> None:
    for vocab_size, width in ((65536, 2), (65537, 4)):
        source, out = tmp_path / f"in-{vocab_size}", tmp_path / f"out-{vocab_size}"
        write_output(source, {"train": [EXAMPLE]}, vocab_size=vocab_size)
        export(source, str(out), "npy")
        assert (out / "train.npy").stat().st_size == 16 * width
        assert READERS["npy"](out, "train") == stored_packs(source, "train", "npy")


def test_rows_of_llama_factory_are_padded_to_a_multiple_of_8_as_its_collator_would(
    tmp_path: Path,
) -> None:
    write_output(tmp_path / "in", {"train": [[row([[5, 6], [7]])]]}, max_length=5)
    export(tmp_path / "in", str(tmp_path / "out"), "llama-factory")
    from datasets import load_from_disk

    assert load_from_disk(str(tmp_path / "out"))["train"][0] == {
        "input_ids": [5, 6, 7, 0, 0, 0, 0, 0],
        "attention_mask": [1, 1, 2, 0, 0, 0, 0, 0],
        "position_ids": [0, 1, 0, 0, 0, 0, 0, 0],
        "labels": [-100, 6, -100, -100, -100, -100, -100, -100],
    }


def test_a_full_pack_is_a_row_of_llama_factory_without_padding(tmp_path: Path) -> None:
    write_output(tmp_path / "in", {"train": [[row([[5] * 6, [7, 8]])]]}, max_length=8)
    export(tmp_path / "in", str(tmp_path / "out"), "llama-factory")
    from datasets import load_from_disk

    assert load_from_disk(str(tmp_path / "out"))["train"][0] == {
        "input_ids": [5, 5, 5, 5, 5, 5, 7, 8],
        "attention_mask": [1, 1, 1, 1, 1, 1, 2, 2],
        "position_ids": [0, 1, 2, 3, 4, 5, 0, 1],
        "labels": [-100, 5, 5, 5, 5, 5, -100, 8],
    }


def test_the_loss_mask_of_megatron_bridge_belongs_to_the_prediction(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    labels = [-100, -100, 7, 8, 9]
    write_output(tmp_path / "in", {"train": [[row([[5, 6, 7], [8, 9]], labels)]]}, LABELED)
    export(tmp_path / "in", str(tmp_path / "out"), "megatron-bridge")
    (path,) = (tmp_path / "out" / "train").iterdir()
    assert pq.read_table(path).to_pylist() == [
        {"input_ids": [5, 6, 7, 8, 9], "loss_mask": [0, 1, 0, 1, 0], "seq_start_id": [0, 3]}
    ]


def test_mds_shards_stay_below_their_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mds, "_LIMIT", 1100)  # 76 bytes for samples and their offsets
    monkeypatch.setattr(mds, "_HEADER", 1024)
    write_output(tmp_path / "in", {"train": [[*EXAMPLE, *EXAMPLE], EXAMPLE]})
    result = export(tmp_path / "in", str(tmp_path / "out"), "mds")
    shards = [name for name in result.files if name.endswith(".mds")]
    assert len(shards) == 6
    assert READERS["mds"](tmp_path / "out", "train") == stored_packs(
        tmp_path / "in", "train", "mds"
    )


def test_bin_idx_refuses_tokens_without_loss_and_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_output(source, {"train": [[row([[5, 6, 7]], [5, -100, 7])]]}, LABELED)
    with pytest.raises(ConfigError, match=r"tokens without loss, and \.bin/\.idx has no place"):
        export(source, str(tmp_path / "out"), "megatron")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_labels_that_train_everything_are_no_obstacle_for_bin_idx(tmp_path: Path) -> None:
    write_output(tmp_path / "in", {"train": [[row([[5, 6], [7, 8]], [-100, 6, 7, 8])]]}, LABELED)
    export(tmp_path / "in", str(tmp_path / "out"), "megatron")
    packs = READERS["megatron"](tmp_path / "out", "train")
    assert packs == [ReadPack([5, 6, 7, 8], [0, 2, 4], [-100, 6, -100, 8])]


def test_flat_ids_refuse_labels_that_are_other_ids(tmp_path: Path) -> None:
    write_output(tmp_path / "in", {"train": [[row([[5, 6, 7]], [5, 9, 7])]]}, LABELED)
    with pytest.raises(ConfigError, match="labels that are other ids than the tokens"):
        export(tmp_path / "in", str(tmp_path / "out"), "npy")


@pytest.mark.parametrize("to", IN_ORDER)
def test_an_output_without_packs_gives_an_empty_export(to: str, tmp_path: Path) -> None:
    write_output(tmp_path / "in", {"train": [[]]})
    export(tmp_path / "in", str(tmp_path / "out"), to)
    assert READERS[to](tmp_path / "out", "train") == []


class Killed(BaseException):
    """The process is gone."""


SHARDS = [[*EXAMPLE], [row([[4, 5], [6]])], [row([[7]]), row([[8, 9, 3, 4, 5]])]]


@pytest.mark.parametrize("to", IN_ORDER)
@pytest.mark.parametrize("finished", [0, 1, 2, 4])
def test_a_killed_export_resumes_behind_its_last_shard_with_the_same_bytes(
    to: str, finished: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("in")
    write_output(source, {"train": SHARDS, "validation": SHARDS}, max_length=9)
    export(source, "whole", to)
    whole = files_of(Path("whole"))
    Path("whole").rename("other")
    read: list[str] = []

    def dying(*arguments: Any) -> Iterator[PackBatch]:
        read.append(arguments[1].path)
        for number, batch in enumerate(read_packs(*arguments)):
            if len(read) > finished and number == 0:
                raise Killed
            yield batch

    with monkeypatch.context() as patched:
        patched.setattr(export_module, "read_packs", dying)
        with pytest.raises(Killed):
            export(source, "whole", to)
    assert not Path("whole").exists()
    again: list[str] = []

    def counting(*arguments: Any) -> Iterator[PackBatch]:
        again.append(arguments[1].path)
        return read_packs(*arguments)

    monkeypatch.setattr(export_module, "read_packs", counting)
    result = export(source, "whole", to)
    assert len(again) == 6 - finished
    assert files_of(Path("whole")) == whole
    assert result.data == read_export(Path("other")).data  # type: ignore[union-attr]
    assert not Path("whole.incomplete").exists()


def test_an_interrupted_export_with_other_facts_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_output(tmp_path / "in", {"train": SHARDS}, max_length=9)
    monkeypatch.setattr(export_module._LocalDestination, "publish", _killed)
    with pytest.raises(Killed):
        export(tmp_path / "in", str(tmp_path / "out"), "npy")
    monkeypatch.undo()
    export(tmp_path / "in", str(tmp_path / "out"), "megatron")
    assert sorted(files_of(tmp_path / "out")) == ["train.bin", "train.idx"]


def _killed(*arguments: Any) -> None:
    raise Killed


def test_export_json_lists_every_file_with_its_digest(tmp_path: Path) -> None:
    write_golden(tmp_path)
    for to in EXPORT_FORMATS:
        result = export(tmp_path / "v1-rich", str(tmp_path / to), to)
        files = files_of(tmp_path / to)
        assert result.files == {
            name: result.files[name]
            | {"bytes": len(content), "xxh3_128": xxhash.xxh3_128(content).hexdigest()}
            for name, content in files.items()
        }


def test_the_same_export_again_is_nothing_to_do(tmp_path: Path) -> None:
    write_golden(tmp_path)
    out = str(tmp_path / "out")
    first = export(tmp_path / "v1-example", out, "npy")
    assert export(tmp_path / "v1-example", out, "npy") == first
    with pytest.raises(ConfigError, match="out is an export with another format; choose another"):
        export(tmp_path / "v1-example", out, "megatron")
    with pytest.raises(ConfigError, match="out is an export with another source; choose another"):
        export(tmp_path / "v1-rich", out, "npy")


def test_other_files_are_never_touched(tmp_path: Path) -> None:
    write_golden(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("words")
    with pytest.raises(ConfigError, match="mine exists and is not an export; choose another -o"):
        export(tmp_path / "v1-example", str(tmp_path / "mine"), "npy")
    (tmp_path / "mine").rename(tmp_path / "out.incomplete")
    with pytest.raises(ConfigError, match=r"out\.incomplete, in which the export is made, has"):
        export(tmp_path / "v1-example", str(tmp_path / "out"), "npy")
    assert (tmp_path / "out.incomplete" / "thesis.tex").read_text() == "words"


def test_an_export_whose_first_file_was_cut_off_by_a_power_cut_begins_again(tmp_path: Path) -> None:
    write_golden(tmp_path)
    for left in ((), ("progress.json.host-1.tmp",)):
        (tmp_path / "out.incomplete").mkdir()
        for name in left:
            (tmp_path / "out.incomplete" / name).write_bytes(b'{"made')
        export(tmp_path / "v1-example", str(tmp_path / "out"), "npy")
        assert run("verify", tmp_path / "out").code == 0
        shutil.rmtree(tmp_path / "out")


def test_a_damaged_shard_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_golden(tmp_path)
    shard = tmp_path / "v1-example" / "data-00000-of-00001.arrow"
    content = shard.read_bytes()
    place = content.index(np.array([1, 20, 21], np.int32).tobytes())
    shard.write_bytes(content[: place + 4] + b"\xff" * 4 + content[place + 8 :])
    with pytest.raises(FormatError, match=r"00001\.arrow has sha256 \w+; expected \w+; restore"):
        export(tmp_path / "v1-example", str(tmp_path / "out"), "npy")
    seal(tmp_path / "v1-example", shard.name, 2, 16)  # by a writer that does not look
    with pytest.raises(FormatError, match=r"00001\.arrow packs from 0 have the token id -1"):
        export(tmp_path / "v1-example", str(tmp_path / "out"), "npy")
    shard.write_bytes(content[:-1])
    with pytest.raises(FormatError, match=r"00001\.arrow has \d+ bytes; expected \d+"):
        export(tmp_path / "v1-example", str(tmp_path / "out"), "npy")


def test_the_command_writes_and_says_what_it_wrote(tmp_path: Path) -> None:
    write_golden(tmp_path)
    result = run("export", tmp_path / "v1-example", "--to", "megatron", "-o", tmp_path / "out")
    assert result.code == 0
    assert "2 packs, 4 segments, 16 tokens" in result.out
    again = run(
        "export", tmp_path / "v1-example", "--to", "megatron", "-o", tmp_path / "out", "--json"
    )
    assert json.loads(again.out)["format"] == "megatron"
    assert "nothing to do" in again.err


def test_the_command_knows_every_format() -> None:
    text = run("export", "--help").out
    for name in EXPORT_FORMATS:
        assert f"\n  {name} " in text
    assert run("export", "x", "--to", "tfrecord", "-o", "y").code == 2


@pytest.mark.parametrize("to", GONE_FORMATS)
def test_a_format_of_earlier_versions_is_answered_with_what_serves_instead(to: str) -> None:
    answer = f"{to} is no format any more: {GONE_FORMATS[to]}"
    assert answer in run("export", GOLDEN / "v1-example", "--to", to, "-o", "y").err
    with pytest.raises(ConfigError, match=answer):
        export(GOLDEN / "v1-example", "y", to)


def test_a_pack_batch_knows_what_is_trained(tmp_path: Path) -> None:
    manifest = write_output(tmp_path / "in", {"train": [[rich_row(0, 3, 1)]]}, RICH, max_length=16)
    (entry,), source = manifest.shards("train"), CheckedOutput(tmp_path / "in")
    (batch,) = read_packs(source, entry, source.file(entry))
    assert batch.bounds.tolist() == [0, 4, 8, 12]
    assert batch.real_lengths.tolist() == [3, 1, 0]
    assert batch.labels.tolist() == [-100, 5, 5, -100] + [-100] * 8
    assert batch.real_tokens.tolist() == [True] * 3 + [False, True] + [False] * 7
    assert (batch.pads, batch.has_untrained, batch.has_other_targets) == (True, False, False)


def test_an_export_to_a_store_appears_with_export_json(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("in")
    write_output(source, {"train": SHARDS}, max_length=9)
    export(source, "local", "npy")
    store = Store(f"{bucket}/exported")
    sent: list[str] = []
    writing = Store.writing

    def dying(self: Store, name: str) -> Any:
        if len(sent) == 2:
            raise Killed
        sent.append(name)
        return writing(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(export_module, "_AT_ONCE", 1)
        patched.setattr(Store, "writing", dying)
        with pytest.raises(Killed):
            export(source, store.url, "npy")
    assert sent == ["train.csv.gz", "train.npy"]
    assert store.find(EXPORT) is None
    export(source, store.url, "npy")
    names = store.list()
    assert {name: store.read(name) for name in names if name != EXPORT} == files_of(Path("local"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "local"]
    result = run("export", source, "--to", "npy", "-o", store.url)
    assert "nothing to do" in result.err
    with pytest.raises(ConfigError, match="is an export with another format; choose another -o"):
        export(source, store.url, "megatron")


def test_a_folder_of_a_store_with_other_files_is_never_touched(bucket: str, tmp_path: Path) -> None:
    write_golden(tmp_path)
    Store(bucket).write("mine/thesis.tex", b"words")
    with pytest.raises(
        ConfigError, match=r"mine/thesis\.tex exists \(5 bytes\) and is not of this"
    ):
        export(tmp_path / "v1-example", f"{bucket}/mine", "npy", work_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"is a bucket; give a folder in it, such as \w+://"):
        export(tmp_path / "v1-example", bucket, "npy")
