"""`verify` finds every planted defect and names its place.

It finds nothing in the output of a build.
"""

import contextlib
import itertools
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packprep import build
from packprep.config.option import STRATEGY_NAMES
from packprep.derive.merge import merge
from packprep.inspect.verify import verify
from packprep.schemas import read_manifest
from packprep.schemas.canonical import file_digest
from packprep.schemas.storage.writing import write_dataset_files, write_manifest
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import expected_ids, save_tokenizer, texts, tiny_tokenizer, write_jsonl
from tests.helpers.files import config
from tests.helpers.planted import Packs, packs_of, plant, seal
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, write_output

BOS, EOS = 0, 1  # of the tiny tokenizer


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output of several shards: 90 documents of two sources, some empty, some split.

    Packs of at most 64 tokens.
    """
    folder = tmp_path_factory.mktemp("built")
    write_jsonl(folder / "a.jsonl", texts(60))
    write_jsonl(folder / "b.jsonl", texts(30, seed=1))
    build(
        config(
            sources=[folder / "a.jsonl", folder / "b.jsonl"],
            output=str(folder / "out"),
            max_length=64,
            tokenizer=save_tokenizer(folder / "tok"),
            shard_size="15KB",
        )
    )
    return folder / "out"


@pytest.fixture
def out(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "out"))


def found(out: Path, **options: Any) -> list[str]:
    return [str(finding) for finding in verify(out, **options).findings]


def shard_paths(out: Path) -> list[str]:
    return [entry.path for entry in read_manifest(out).shards("train")]


def test_a_clean_output_is_sound_and_everything_was_looked_at(built: Path) -> None:
    verdict = verify(built)
    manifest = read_manifest(built)
    assert verdict.sound
    assert not len(verdict.findings)
    assert len(shard_paths(built)) >= 4
    assert verdict.not_checked == []
    assert verdict.files == len([path for path in built.rglob("*") if path.is_file()])
    assert (verdict.packs, verdict.tokens) == (manifest.num_packs, manifest.num_tokens)
    documents = [source["documents"] for source in verdict.sources]
    assert documents == [
        sum(1 for text in texts(60) if text),
        sum(1 for text in texts(30, seed=1) if text),
    ]
    assert [(source["bos"], source["eos"]) for source in verdict.sources] == [(1.0, 1.0)] * 2


# Every option that shapes packs; a combination that a build refuses is left out.
SWEEP: dict[str, list[Any]] = {
    "strategy": list(STRATEGY_NAMES),
    "overflow": ["split", "split", "truncate", "drop"],
    "min_pack_tokens": [0, 0, 12],
    "stride": [0, 0, 5],
    "continuation_bos": [False, True],
    "truncation_side": ["right", "left"],
    "max_length": [16, 32, 64, 512],
    "min_document_tokens": [1, 4],
    "max_document_tokens": [None, 90],
    "bos": ["auto", "none", "</s>"],
    "eos": ["auto", "none"],
    "pad_segment_to_multiple": [1, 1, 4],
    "packs_multiple_of": [1, 1, 8],
    "remainder": ["drop", "fill"],
    "holdout": [0.0, 0.0, 0.3],
    "order": ["shuffle", "input", "length", "balanced"],
    "columns": [
        "position_ids,document_ids,document_starts",
        "position_ids,document_ids,document_starts",
        "",
    ],
    "shard_size": ["4KB", "500MB"],
    "unit_size": ["2KB", "64MB"],
    "window": ["4KB", "4GB"],
    "truncate_at": [None, "mat"],
    "max_segments_per_pack": [None, 3],
    "limit": [None, 25],
}


def drawn_options(seed: int) -> dict[str, Any]:
    """Options of a build, each combination allowed by BuildConfig."""
    draw = random.Random(seed)
    while True:
        options = {key: draw.choice(values) for key, values in SWEEP.items()}
        if options["strategy"] == "balanced":
            options["window"] = "4GB"
        if options["continuation_bos"] and options["bos"] == "none":
            continue
        with contextlib.suppress(ConfigError):
            config(**options)
            return options


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_jsonl(folder / "a.jsonl", [*texts(30), None, {"text": 5}])
    (folder / "b.txt").write_text("\n\n".join(text or "short" for text in texts(12, seed=3)))
    save_tokenizer(folder / "tok")
    return folder


@pytest.mark.parametrize("tenth", range(10))
def test_a_hundred_clean_builds_raise_no_alarm(
    tenth: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus)
    clean = 0
    for seed in itertools.count(1000 * tenth):
        output, options = tmp_path / str(seed), drawn_options(seed)
        try:
            built = build(
                config(
                    sources=["a.jsonl", "b.txt"],
                    sample_by="paragraph",
                    output=str(output),
                    tokenizer="tok",
                    on_error="skip",
                    engine="hf",
                    verify_engine=0,
                    **options,
                )
            )
        except InputError as error:
            expected = ("no document is left", "drops all packs of the split")
            assert any(words in str(error) for words in expected), error
            continue
        verdict = verify(output, level="full", sample=20)
        assert verdict.sound, (options, [str(finding) for finding in verdict.findings])
        assert verdict.tokens == built.num_tokens
        assert verdict.sampled == (20 if options["columns"] else 0)
        clean += 1
        if clean == 10:
            return


def test_a_thousand_flipped_bits_over_all_files_are_found_and_the_file_is_named(out: Path) -> None:
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".arrow", ".yaml"}
    draw = random.Random(0)
    manifest = [path for path in files if path.name == "manifest.json"]
    others = [path for path in files if path not in manifest]
    flips = 0
    while flips < 1000:
        for damaged in (others, manifest):  # without its manifest nothing else is looked at
            contents = {path: path.read_bytes() for path in damaged}
            for path, content in contents.items():
                at, bit = draw.randrange(len(content)), draw.randrange(8)
                path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            findings = {finding.file for finding in verify(out).findings}
            assert findings >= {path.relative_to(out).as_posix() for path in damaged}
            for path, content in contents.items():
                path.write_bytes(content)
            flips += len(damaged)
    assert verify(out).sound


def test_every_bit_of_the_manifest_and_of_state_json_counts(out: Path) -> None:
    for name in ("manifest.json", "state.json"):
        content = (out / name).read_bytes()
        for at in range(0, len(content), 7):
            (out / name).write_bytes(
                content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
            )
            assert any(finding.file == name for finding in verify(out).findings), (name, at)
        (out / name).write_bytes(content)


def test_swapped_shards_are_named_with_what_they_should_hold(out: Path) -> None:
    first, second = shard_paths(out)[:2]
    (out / first).rename(out / "kept")
    (out / second).rename(out / first)
    (out / "kept").rename(out / second)
    said = found(out)
    assert any(line.startswith(f"{first}: it has the content of {second}") for line in said)
    assert any(line.startswith(f"{second}: it has the content of {first}") for line in said)


def test_a_duplicated_shard_is_named_and_so_are_the_documents_that_stand_twice(out: Path) -> None:
    first, second = shard_paths(out)[:2]
    shutil.copy(out / first, out / second)
    said = found(out)
    assert any(line.startswith(f"{second}: it has the content of {first}") for line in said)
    assert any("is in the packs more than once" in line for line in said)


def test_a_missing_shard_and_a_surplus_file_are_named(out: Path) -> None:
    first = shard_paths(out)[0]
    size = (out / first).stat().st_size
    (out / first).rename(out / "mine.arrow")
    verdict = verify(out)
    said = [str(finding) for finding in verdict.findings]
    assert said == [
        f"{first}: it is missing; the manifest lists it with {size} bytes",
        "mine.arrow: it is not in the manifest; expected nothing else in the directory",
    ]
    assert verdict.not_checked == ["the ledger and lost documents: not every shard could be read"]


def test_a_shard_cut_at_any_record_batch_boundary_is_found_even_when_the_manifest_agrees(
    out: Path,
) -> None:
    shard = shard_paths(out)[0]
    plant(out, lambda packs: None)  # written again, four packs to a record batch
    content, ends = (out / shard).read_bytes(), []
    source = pa.BufferReader(content)
    with pa.ipc.open_stream(source) as stream:
        ends.append((source.tell(), 0))
        packs = 0
        for batch in stream:
            packs += len(batch)
            ends.append((source.tell(), packs))
    assert len(ends) >= 4
    for end, packs in ends:
        (out / shard).write_bytes(content[:end])
        said = found(out)
        size = (out / shard).stat().st_size
        assert f"{shard}: it has {size} bytes; expected {len(content)}" in said
        assert (
            f"{shard}: it ends after {packs} packs without the end marker of an Arrow stream: it "
            "was cut off" in said
        )
    tokens = sum(len(pack["tokens"]) for pack in packs_of(out)[: ends[2][1]])
    (out / shard).write_bytes(content[: ends[2][0]])
    seal(out, shard, ends[2][1], tokens)
    said = found(out)
    assert not any("bytes; expected" in line or "sha256" in line for line in said)
    assert any(
        line.startswith(f"{shard}: it ends after {ends[2][1]} packs without the end marker")
        for line in said
    )
    assert any("documents here" in line for line in said)


def test_bytes_behind_the_end_of_a_stream_are_found(out: Path) -> None:
    shard = read_manifest(out).shards("train")[0]
    with (out / shard.path).open("ab") as file:
        file.write(b"more")
    seal(out, shard.path, int(shard.packs or 0), int(shard.tokens or 0))
    assert found(out) == [
        f"{shard.path}: 4 bytes follow the end of the Arrow stream; expected none"
    ]


def whole_document(packs: Packs) -> tuple[int, int, int, int]:
    """Pack, segment, begin and end of a document of at least 5 tokens.

    One that is whole and not the longest.
    """
    for number, pack in enumerate(packs):
        bounds = pack["cu_seqlens"]
        for segment, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if pack["document_starts"][segment] == 0 and 5 <= end - begin < 60:
                return number, segment, begin, end
    raise AssertionError("no such document")


def planted_at(out: Path, column: str, offset: int, value: int) -> tuple[str, Any]:
    """Change one value of a whole document, and return its place.

    `offset`: from its begin (from its end if negative).
    """
    number, segment, begin, end = whole_document(packs_of(out))

    def edit(packs: Packs) -> None:
        if column in ("tokens", "position_ids"):
            packs[number][column][begin + offset if offset >= 0 else end + offset] = value
        else:
            packs[number][column][segment] = value

    plant(out, edit)
    return f"{shard_paths(out)[0]} pack {number} segment {segment}", packs_of(out)[number]


@pytest.mark.parametrize(
    ("column", "offset", "value", "message"),
    [
        ("position_ids", 3, 9, " token 3: position_ids has 9; expected 3"),
        ("tokens", 2, 320, " token 2: the id is 320; expected 0 to 319"),
        ("tokens", 2, -1, " token 2: the id is -1; expected 0 to 319"),
        ("tokens", 1, BOS, "begins with BOS 0 twice; expected it once"),
        ("tokens", 0, 7, "begins with id 7; expected BOS 0"),
        ("tokens", -1, 7, "ends with id 7; expected EOS 1"),
        ("tokens", -2, EOS, "ends with EOS twice; expected it once"),
        ("document_ids", 0, 90, ": the document id is 90; the sources have 90 rows"),
        ("document_ids", 0, -5, ": the document id is -5; expected an input row, or -1 for filler"),
        ("document_starts", 0, -1, ": document_starts has -1; expected 0 or more"),
        ("document_starts", 0, 5, "begins here at token 5; the tokens before it are in no pack"),
    ],
)
def test_a_wrong_value_under_right_digests_is_named_with_file_pack_and_segment(
    out: Path, column: str, offset: int, value: int, message: str
) -> None:
    place, _ = planted_at(out, column, offset, value)
    said = found(out)
    assert any(line.startswith(place) and line.endswith(message) for line in said), said


def test_a_document_that_is_lost_is_counted_and_its_row_is_named(out: Path) -> None:
    number, segment, begin, end = whole_document(packs_of(out))
    document = packs_of(out)[number]["document_ids"][segment]

    def lose(packs: Packs) -> None:
        pack = packs[number]
        for column in ("tokens", "position_ids"):
            del pack[column][begin:end]
        bounds = pack["cu_seqlens"]
        pack["cu_seqlens"] = bounds[: segment + 1] + [
            bound - (end - begin) for bound in bounds[segment + 2 :]
        ]
        del pack["document_ids"][segment], pack["document_starts"][segment]

    plant(out, lose)
    empty = [number for number, text in enumerate(texts(60)) if not text]
    rows = sorted([*empty, document])
    (said,) = [line for line in found(out) if "documents here" in line]
    assert f"documents here, {59 - len(empty)} in the shards" in said
    assert said.endswith(
        f"1 of the {len(rows)} rows that are in no pack are lost: row {', '.join(map(str, rows))}"
    )


def place_of_piece(out: Path, document: int, start: int) -> tuple[int, int]:
    """Shard and pack of a piece that fills its pack."""
    return next(
        (shard, number)
        for shard in range(len(shard_paths(out)))
        for number, pack in enumerate(packs_of(out, shard))
        if (pack["document_ids"][0], pack["document_starts"][0]) == (document, start)
    )


def test_a_lost_piece_in_the_middle_and_one_at_the_end_of_a_document_are_named(out: Path) -> None:
    lengths = [len(ids) for ids in expected_ids(texts(60), tiny_tokenizer(), BOS, EOS)]
    row = lengths.index(max(lengths))
    shard, middle = place_of_piece(out, row, 64)
    plant(out, lambda packs: packs.__delitem__(middle), shard)
    assert any(
        line.endswith(f"a.jsonl row {row}: tokens 64 to 127 are in no pack") for line in found(out)
    )


def test_a_document_whose_last_piece_is_lost_ends_without_eos(out: Path) -> None:
    lengths = [len(ids) for ids in expected_ids(texts(60), tiny_tokenizer(), BOS, EOS)]
    row = lengths.index(max(lengths))
    tail = lengths[row] // 64 * 64
    shard, number = next(
        (shard, number)
        for shard in range(len(shard_paths(out)))
        for number, pack in enumerate(packs_of(out, shard))
        if (row, tail) in zip(pack["document_ids"], pack["document_starts"], strict=True)
    )
    plant(out, lambda packs: packs.__delitem__(number), shard)
    assert any(
        line.endswith(f"a.jsonl row {row} ends here, at token {tail}, without EOS")
        for line in found(out)
    )


def test_a_piece_that_stands_twice_is_named(out: Path) -> None:
    packs = packs_of(out)
    number = next(n for n, pack in enumerate(packs) if pack["document_starts"][0] == 64)
    plant(out, lambda packs: packs.append(packs[number]))
    place = f"{shard_paths(out)[0]} pack {len(packs)} segment 0: a.jsonl row"
    assert any("are repeated here" in line and ": tokens 64 to " in line for line in found(out)), (
        place
    )


def test_a_document_that_stands_twice_is_named_with_both_places(out: Path) -> None:
    packs = packs_of(out)
    number = whole_document(packs)[0]
    plant(out, lambda packs: packs.append(packs[number]))
    shard = shard_paths(out)[0]
    (said, *_) = [line for line in found(out) if "is in the packs more than once" in line]
    assert f"{shard} pack {number} segment" in said
    assert f"{shard} pack {len(packs)} segment" in said


def test_a_document_cut_on_the_left_that_stands_twice_is_named_with_both_places(
    tmp_path: Path,
) -> None:
    write_jsonl(tmp_path / "a.jsonl", texts(30))
    out = tmp_path / "out"
    build(
        config(
            sources=[tmp_path / "a.jsonl"],
            output=out,
            max_length=64,
            tokenizer=save_tokenizer(tmp_path / "tok"),
            overflow="truncate",
            truncation_side="left",
        )
    )
    packs = packs_of(out)
    number = next(n for n, pack in enumerate(packs) if pack["document_starts"][0] > 0)
    plant(out, lambda packs: packs.append(packs[number]))
    shard = shard_paths(out)[0]
    (said,) = [line for line in found(out) if "is in the packs more than once" in line]
    assert said.endswith(f"{shard} pack {number} segment 0 and {shard} pack {len(packs)} segment 0")


def test_all_defects_are_told_and_not_only_the_first(out: Path) -> None:
    def edit(packs: Packs) -> None:
        for pack in packs[:6]:
            pack["position_ids"][1] = 5
        packs[2]["cu_seqlens"][0] = 1
        packs[4]["tokens"][0] = 999

    plant(out, edit)
    verdict = verify(out)
    places = {(finding.kind, finding.pack) for finding in verdict.findings}
    assert {("position", number) for number in (0, 1, 3, 4, 5)} <= places
    assert {("boundaries", 2), ("token id", 4)} <= places
    few = verify(out, max_findings=2)
    assert few.findings.counts == verdict.findings.counts
    assert len(few.findings.kept["position"]) == 2


def test_a_ledger_or_report_that_the_data_contradicts_is_found(out: Path) -> None:
    shard = read_manifest(out).shards("train")[0]
    tokens = int(shard.tokens or 0)
    seal(out, shard.path, int(shard.packs or 0), tokens + 3)
    said = found(out)
    assert f"{shard.path}: it has {tokens:,} tokens; the manifest says {tokens + 3:,}" in said
    assert any(line.startswith("manifest.json: the ledger has tokens_packed") for line in said)


def test_state_json_that_leaves_a_shard_out_is_found_under_right_digests(out: Path) -> None:
    names = shard_paths(out)
    write_dataset_files(out, names[:-1], fingerprint="0" * 16, split="train")
    manifest = read_manifest(out)
    data = json.loads(json.dumps(manifest.data))
    entry = next(entry for entry in data["files"] if entry["path"] == "state.json")
    entry |= {
        "bytes": (out / "state.json").stat().st_size,
        "sha256": file_digest(out / "state.json"),
    }
    write_manifest(out, data, manifest.run)
    (said,) = found(out)
    assert said.startswith("state.json: it lists ")
    assert said.endswith("the manifest lists other shards of train")


def test_columns_that_were_left_out_are_said_not_to_be_checked(
    corpus: Path, tmp_path: Path
) -> None:
    options = {
        "output": str(tmp_path / "out"),
        "tokenizer": corpus / "tok",
        "on_error": "skip",
        "columns": "",
    }
    build(config(sources=[corpus / "a.jsonl"], **options))
    verdict = verify(tmp_path / "out")
    assert verdict.sound
    assert verdict.not_checked == [
        "documents, BOS and EOS: the shards have no document_ids and document_starts",
        "filler: the shards have neither document_ids nor segment_lengths",
    ]


def test_outputs_of_every_format_version_are_read(tmp_path: Path) -> None:
    for golden in sorted(GOLDEN.iterdir()):
        verdict = verify(golden)
        # Their manifests and reports say three documents, whatever their packs hold: they are there
        # for readers.
        kinds = set(verdict.findings.counts)
        assert kinds <= {"document", "lost documents", "ledger", "label at start"}, list(
            map(str, verdict.findings)
        )
        assert verdict.not_checked == ["BOS and EOS: the manifest does not say what they are"]


def test_outputs_that_merge_made_are_sound_and_what_they_do_not_say_is_not_checked(
    built: Path, corpus: Path, tmp_path: Path
) -> None:
    build(
        config(
            sources=[corpus / "a.jsonl"],
            output=str(tmp_path / "wrapped"),
            tokenizer=corpus / "tok",
            max_length=64,
            strategy="wrapped",
            on_error="skip",
        )
    )
    merge([built, built], tmp_path / "same")
    assert (verify(tmp_path / "same").sound, verify(tmp_path / "same").not_checked) == (True, [])
    merge([built, tmp_path / "wrapped"], tmp_path / "both")
    verdict = verify(tmp_path / "both", level="full")
    assert verdict.sound, list(map(str, verdict.findings))
    assert verdict.not_checked[0].startswith("cuts of documents: the merged outputs")
    assert verdict.not_checked[1].startswith(
        "documents against their sources: the manifest has no on_error, strategy"
    )
    packs = packs_of(tmp_path / "both")
    number = whole_document(packs)[0]
    plant(tmp_path / "both", lambda packs: packs.append(packs[number]))
    assert any("is in the packs more than once" in line for line in found(tmp_path / "both"))


def test_a_label_on_the_first_token_of_a_segment_is_found(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    build(
        config(
            sources=[corpus / "a.jsonl"],
            output=str(output),
            tokenizer=corpus / "tok",
            max_length=64,
            on_error="skip",
            pad_segment_to_multiple=4,
        )
    )
    assert verify(output).sound
    plant(output, lambda packs: packs[1]["labels"].__setitem__(0, packs[1]["tokens"][0]))
    said, summed = found(output)
    assert said.startswith(
        "data-00000-of-00001.arrow pack 1 segment 0: the first token has a label"
    )
    assert re.fullmatch(
        r"report\.json: ([\d,]+) tokens are trained, the shards have ([\d,]+) labels", summed
    )


def test_a_damaged_manifest_is_the_one_finding(out: Path) -> None:
    (out / "manifest.json").write_bytes((out / "manifest.json").read_bytes()[:-2])
    verdict = verify(out)
    (finding,) = verdict.findings
    assert str(finding).startswith("manifest.json: it is not JSON that packprep wrote")
    assert verdict.not_checked == ["everything else: without a manifest nothing is known of it"]


def test_a_lost_manifest_is_a_finding_and_the_shards_are_still_checked(out: Path) -> None:
    (out / "manifest.json").unlink()
    verdict = verify(out)
    (finding,) = verdict.findings
    assert str(finding).startswith(
        "manifest.json: it is missing, but report.json shows that packprep built this"
    )
    assert verdict.tokens > 0


def test_a_folder_with_nothing_to_verify_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has neither manifest"):
        verify(tmp_path)
    with pytest.raises(InputError, match="is not a directory"):
        verify(tmp_path / "nowhere")
    write_output(tmp_path / "out", {"train": [EXAMPLE]})
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(InputError, match="omit --level full"):
        verify(tmp_path / "out", level="full")


def test_a_file_that_may_not_be_read_is_a_finding(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, before = shard_paths(out)[1], Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == shard:
            raise PermissionError(13, "Permission denied", str(path))
        return before(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert f"{shard}: it cannot be read: Permission denied" in found(out)


def test_the_command_says_sound_and_exits_0(built: Path) -> None:
    result = run("verify", built)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == str(built)
    assert lines[1].split() == ["result", "sound"]
    assert any("documents, 100.0000% with BOS, 100.0000% with EOS" in line for line in lines)
    assert run("verify", built, "--quiet").out == ""


def test_the_command_prints_findings_by_kind_and_exits_1(out: Path) -> None:
    place, _ = planted_at(out, "tokens", 1, BOS)
    result = run("verify", out)
    assert result.code == 1
    assert result.out.startswith(f"doubled BOS  {place}")
    assert "result" in result.out
    assert "1 finding\n" in result.out
    as_json = run("verify", out, "--json")
    loaded = json.loads(as_json.out)
    assert (as_json.code, loaded["sound"], loaded["counts"]) == (1, False, {"doubled BOS": 1})
    assert loaded["findings"][0]["kind"] == "doubled BOS"
    assert {"file", "pack", "segment", "what"} <= set(loaded["findings"][0])


def test_the_command_on_nothing_exits_2(tmp_path: Path) -> None:
    result = run("verify", tmp_path)
    assert result.code == 2
    assert result.err.startswith("packprep: ")
    assert result.err.count("\n") == 1
