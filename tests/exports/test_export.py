import json
import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import load_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.config.grammar.spellings import GONE_FORMATS
from packprep.exports import export as export_module
from packprep.exports import mds
from packprep.exports.export import export
from packprep.exports.packs import PackBatch, read_packs
from packprep.inspect.verify import verify
from packprep.output import remote
from packprep.output.directory import LocalTarget
from packprep.schemas import STANDARD_COLUMNS
from packprep.schemas.errors import FormatError
from packprep.schemas.storage.export_manifest import EXPORT, read_export
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.examples import share_of_examples
from tests.helpers.export_readers import READERS, stored_packs
from tests.helpers.files import bytes_in
from tests.helpers.planted import seal
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, PLAIN, Row, write_golden, write_output

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


@st.composite
def padded_packs(draw: st.DrawFn) -> list[list[Row]]:
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
    return [rows]


@st.composite
def labelled_packs(draw: st.DrawFn) -> list[list[Row]]:
    """Shards of packs, any tokens of which are trained."""
    segments = st.lists(
        st.lists(st.integers(0, 31), min_size=1, max_size=9), min_size=1, max_size=5
    )
    shards: list[list[Row]] = []
    for packs in draw(st.lists(st.lists(segments, max_size=4), min_size=1, max_size=3)):
        shards.append([])
        for pack in packs:
            tokens = [token for segment in pack for token in segment]
            labels = [token if draw(st.booleans()) else -100 for token in tokens]
            shards[-1].append(row(pack, labels))
    return shards


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("to", IN_ORDER)
@settings(max_examples=share_of_examples(8))
@given(data=st.data())
def test_any_packs_arrive(
    to: str, padded: bool, data: st.DataObject, tmp_path_factory: Any
) -> None:
    folder, columns = tmp_path_factory.mktemp("any"), LABELED
    if padded:
        columns = (*LABELED, STANDARD_COLUMNS["segment_lengths"])
    elif to == "megatron" or data.draw(st.booleans()):
        columns = PLAIN
    shards = data.draw(padded_packs() if padded else labelled_packs())
    write_output(folder / "source", {"train": shards}, columns, max_length=45)
    export(folder / "source", str(folder / "out"), to)
    assert READERS[to](folder / "out", "train") == stored_packs(folder / "source", "train", to)


@pytest.mark.parametrize(
    ("to", "last_of_two_bytes", "file"),
    [("megatron", 65499, "train.bin"), ("npy", 65536, "train.npy")],
)
def test_ids_have_two_bytes_up_to_the_vocabulary_of_the_format(
    to: str, last_of_two_bytes: int, file: str, tmp_path: Path
) -> None:
    for more, width in enumerate((2, 4)):
        source, out = tmp_path / f"in-{more}", tmp_path / f"out-{more}"
        write_output(source, {"train": [EXAMPLE]}, vocab_size=last_of_two_bytes + more)
        export(source, str(out), to)
        assert (out / file).stat().st_size == 16 * width
        assert READERS[to](out, "train") == stored_packs(source, "train", to)
        if to == "megatron":  # 8 says uint16, 4 says int32
            assert struct.unpack_from("<B", (out / "train.idx").read_bytes(), 17) == ((8, 4)[more],)


def test_rows_of_llama_factory_are_padded_to_a_multiple_of_8_as_its_collator_would(
    tmp_path: Path,
) -> None:
    write_output(tmp_path / "in", {"train": [[row([[5, 6], [7]])]]}, max_length=5)
    export(tmp_path / "in", str(tmp_path / "out"), "llama-factory")
    assert load_from_disk(str(tmp_path / "out"))["train"][0] == {
        "input_ids": [5, 6, 7, 0, 0, 0, 0, 0],
        "attention_mask": [1, 1, 2, 0, 0, 0, 0, 0],
        "position_ids": [0, 1, 0, 0, 0, 0, 0, 0],
        "labels": [-100, 6, -100, -100, -100, -100, -100, -100],
    }


def test_the_loss_mask_of_megatron_bridge_belongs_to_the_prediction(tmp_path: Path) -> None:
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
    source = tmp_path / "in"
    write_output(source, {"train": [[*EXAMPLE, *EXAMPLE], EXAMPLE]})
    result = export(source, str(tmp_path / "out"), "mds")
    assert len([name for name in result.files if name.endswith(".mds")]) == 6
    assert READERS["mds"](tmp_path / "out", "train") == stored_packs(source, "train", "mds")


@pytest.mark.parametrize(
    ("to", "labels", "words"),
    [
        ("megatron", [5, -100, 7], r"tokens without loss, and \.bin/\.idx has no place"),
        ("npy", [5, 9, 7], "labels that are other ids than the tokens"),
    ],
)
def test_labels_that_a_format_has_no_place_for_are_refused_and_nothing_is_left(
    to: str, labels: list[int], words: str, tmp_path: Path
) -> None:
    write_output(tmp_path / "in", {"train": [[row([[5, 6, 7]], labels)]]}, LABELED)
    with pytest.raises(ConfigError, match=words):
        export(tmp_path / "in", str(tmp_path / "out"), to)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


class Killed(BaseException):
    """The process is gone."""


SHARDS = [[*EXAMPLE], [row([[4, 5], [6]])], [row([[7]]), row([[8, 9, 3, 4, 5]])]]


@pytest.mark.parametrize("to", IN_ORDER)
@pytest.mark.parametrize(
    "finished", [2, *(pytest.param(number, marks=pytest.mark.long) for number in (0, 1, 4))]
)
def test_a_killed_export_resumes_behind_its_last_shard_with_the_same_bytes(
    to: str, finished: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("in")
    write_output(source, {"train": SHARDS, "validation": SHARDS}, max_length=9)
    export(source, "whole", to)
    whole = bytes_in("whole", without=EXPORT)
    Path("whole").rename("other")
    read: list[str] = []
    most = finished

    def dying(*arguments: Any) -> Iterator[PackBatch]:
        read.append(arguments[1].path)
        for number, batch in enumerate(read_packs(*arguments)):
            if len(read) > most and number == 0:
                raise Killed
            yield batch

    monkeypatch.setattr(export_module, "read_packs", dying)
    with pytest.raises(Killed):
        export(source, "whole", to)
    assert not Path("whole").exists()
    read.clear()
    most = len(SHARDS) * 2
    result = export(source, "whole", to)
    assert len(read) == len(SHARDS) * 2 - finished
    assert bytes_in("whole", without=EXPORT) == whole
    assert result.data == read_export(Path("other")).data  # type: ignore[union-attr]
    assert not Path("whole.incomplete").exists()


def test_an_interrupted_export_with_other_facts_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_output(tmp_path / "in", {"train": SHARDS}, max_length=9)
    with monkeypatch.context() as patch:
        patch.setattr(LocalTarget, "publish", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            export(tmp_path / "in", str(tmp_path / "out"), "npy")
    export(tmp_path / "in", str(tmp_path / "out"), "megatron")
    assert sorted(bytes_in(tmp_path / "out", without=EXPORT)) == ["train.bin", "train.idx"]


def test_the_command_writes_and_says_what_it_wrote_and_the_same_again_is_nothing_to_do(
    tmp_path: Path,
) -> None:
    line = ("export", GOLDEN / "v1-example", "-o", tmp_path / "out", "--to")
    result = run(*line, "npy")
    assert (result.code, "2 packs, 4 segments, 16 tokens" in result.out) == (0, True)
    again = run(*line, "npy", "--json")
    assert json.loads(again.out) == read_export(tmp_path / "out").data  # type: ignore[union-attr]
    assert "nothing to do" in again.err
    with pytest.raises(ConfigError, match="out is an export with another format; choose another"):
        export(GOLDEN / "v1-example", str(tmp_path / "out"), "megatron")
    with pytest.raises(ConfigError, match="out is an export with another source; choose another"):
        export(GOLDEN / "v1-rich", str(tmp_path / "out"), "npy")
    assert run(*line, "tfrecord").code == 2


def test_other_files_are_never_touched(tmp_path: Path) -> None:
    source = GOLDEN / "v1-example"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("words")
    with pytest.raises(ConfigError, match="mine exists and is not an export; choose another"):
        export(source, str(tmp_path / "mine"), "npy")
    (tmp_path / "mine").rename(tmp_path / "out.incomplete")
    with pytest.raises(ConfigError, match=r"out\.incomplete, in which the export is made, has"):
        export(source, str(tmp_path / "out"), "npy")
    (tmp_path / "out.incomplete").rename(tmp_path / "out.replaced")
    (tmp_path / "out").mkdir()
    export(source, str(tmp_path / "out"), "npy")
    assert (tmp_path / "out.replaced" / "thesis.tex").read_text() == "words"


@pytest.mark.parametrize("left", [(), ("progress.json.host-1.tmp",)])
def test_an_export_whose_first_file_was_cut_off_by_a_power_cut_begins_again(
    left: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "out.incomplete").mkdir()
    for name in left:
        (tmp_path / "out.incomplete" / name).write_bytes(b'{"made')
    export(GOLDEN / "v1-example", str(tmp_path / "out"), "npy")
    assert run("verify", tmp_path / "out").code == 0


def test_a_sealed_shard_with_a_wrong_id_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_golden(tmp_path)
    shard = tmp_path / "v1-example" / "data-00000-of-00001.arrow"
    content = shard.read_bytes()
    place = content.index(np.array([1, 20, 21], np.int32).tobytes())
    shard.write_bytes(content[: place + 4] + b"\xff" * 4 + content[place + 8 :])
    seal(tmp_path / "v1-example", shard.name, 2, 16)  # by a writer that does not look
    with pytest.raises(FormatError, match=r"00001\.arrow pack 0 .*: the id is -1; expected"):
        export(tmp_path / "v1-example", str(tmp_path / "out"), "npy")


@pytest.mark.parametrize("to", GONE_FORMATS)
def test_a_format_of_earlier_versions_is_answered_with_what_serves_instead(to: str) -> None:
    answer = f"{to} is gone: {GONE_FORMATS[to]}"
    assert answer in run("export", GOLDEN / "v1-example", "--to", to, "-o", "y").err
    with pytest.raises(ConfigError, match=answer):
        export(GOLDEN / "v1-example", "y", to)


def test_an_export_to_a_store_appears_with_export_json(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("in")
    write_output(source, {"train": SHARDS}, max_length=9)
    export(source, "local", "npy")
    store = Store(f"{bucket}/exported")
    sent: list[str] = []
    most = 2
    writing = Store.writing

    def dying(self: Store, name: str) -> Any:
        if len(sent) == most:
            raise Killed
        sent.append(name.partition("/")[2])
        return writing(self, name)

    monkeypatch.setattr(remote, "_AT_ONCE", 1)
    monkeypatch.setattr(Store, "writing", dying)
    with pytest.raises(Killed):
        export(source, store.url, "npy")
    most = 3  # the rest
    with monkeypatch.context() as patched:
        patched.setattr(Store, "copy_to", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            export(source, store.url, "npy")
    assert sent == ["train.csv.gz", "train.npy", "train.offsets.npy"]
    assert store.find(EXPORT) is None
    with pytest.raises(ConfigError, match="is an export with another format; choose another"):
        export(source, store.url, "megatron")
    export(source, store.url, "npy")
    there = {name: store.read(name) for name in store.list() if name != EXPORT}
    assert there == bytes_in("local", without=EXPORT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "local"]
    assert "nothing to do" in run("export", source, "--to", "npy", "-o", store.url).err
    assert run("verify", store.url).code == 0
    store.write("more", b"1")
    store.write("train.npy", store.read("train.npy")[::-1])
    store.delete(["train.csv.gz"])
    found = {finding.file for finding in verify(store.url).findings}
    assert found == {"more", "train.npy", "train.csv.gz"}


def exported(to: str, tmp_path: Path) -> Path:
    source = GOLDEN / ("v1-example" if to == "megatron" else "v1-rich")
    export(source, str(tmp_path / "out"), to)
    return tmp_path / "out"


@pytest.mark.parametrize("to", IN_ORDER)
def test_any_damage_of_any_file_is_a_finding_that_names_it_and_not_an_error(
    to: str, tmp_path: Path
) -> None:
    out = exported(to, tmp_path)
    verdict = verify(out)
    assert (verdict.sound, verdict.packs) == (True, 2 if to == "megatron" else 5)
    checks = "packs, documents and the ledger: export.json has digests of files"
    assert verdict.not_checked == [checks]
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        right, name = path.read_bytes(), path.relative_to(out).as_posix()
        flipped = [right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :] for at in (2, -2)]
        for wrong in (b"", b"{", right[: len(right) // 2], *flipped):
            path.write_bytes(wrong)
            assert {finding.file for finding in verify(out).findings} == {name}, wrong[:40]
        if name != EXPORT:  # without it nothing says that this is an export
            path.unlink()
            (finding,) = verify(out).findings
            assert str(finding).startswith(f"{name}: it is missing; export.json lists it")
        path.write_bytes(right)
    (out / "train-notes").write_text("mine")
    assert run("verify", out, "-q").code == 1
    (finding,) = verify(out).findings
    words = "it is not in export.json; expected nothing else in the directory"
    assert str(finding) == f"train-notes: {words}"
