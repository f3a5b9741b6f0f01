"""`verify` finds every planted defect and names its place; in the output of a build, nothing.

Wrong values of every column, at level full: tests/inspect/test_planted_faults.py. Builds of every
option: tests/execute/test_options_as_index.py.
"""

import hashlib
import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packprep import build
from packprep.derive.merge import merge
from packprep.inspect.shard_files import Checked, opener, read_file
from packprep.inspect.verify import verify
from packprep.schemas import read_manifest
from packprep.schemas.canonical import file_digest
from packprep.schemas.storage.writing import write_dataset_files, write_manifest
from packprep.support.errors import InputError
from tests.helpers.command import run
from tests.helpers.corpus import expected_ids, texts, tiny_tokenizer
from tests.helpers.errors import refused
from tests.helpers.examples import share_of_examples
from tests.helpers.planted import Packs, packs_of, plant, seal
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, write_output
from tests.helpers.zoo import NAMES, Zoo

BOS, EOS = 0, 1  # of the tiny tokenizer
LENGTHS = [len(ids) for ids in expected_ids(texts(120), tiny_tokenizer(), BOS, EOS)]
LONGEST = LENGTHS.index(max(LENGTHS))


@pytest.fixture
def out(zoo: Zoo, tmp_path: Path) -> Path:
    """A copy of an output of several shards: 120 documents, some empty, some in pieces.

    Packs of at most 64 tokens.
    """
    return zoo.copy("text", tmp_path)


def found(out: Path, **options: Any) -> list[str]:
    return [str(finding) for finding in verify(out, **options).findings]


def has(lines: list[str], begin: str, end: str = "") -> bool:
    return any(line.startswith(begin) and line.endswith(end) for line in lines)


def shard_paths(out: Path) -> list[str]:
    return [entry.path for entry in read_manifest(out).shards("train")]


@pytest.mark.parametrize("name", NAMES)
def test_a_clean_output_is_sound_and_everything_is_checked(zoo: Zoo, name: str) -> None:
    manifest = read_manifest(zoo[name])
    rows = sum(source["documents"] for source in manifest.data["sources"])
    for sample in (0, 7, 10_000) if name == "text" else (10_000,):
        verdict = verify(zoo[name], level="full", sample=sample)
        assert list(map(str, verdict.findings)) == verdict.not_checked == []
        assert verdict.sampled == min(sample, rows)
    assert verdict.files == len([path for path in zoo[name].rglob("*") if path.is_file()])
    assert (verdict.packs, verdict.tokens) == (manifest.num_packs, manifest.num_tokens)
    if name == "text":
        (source,) = verdict.sources
        assert source["documents"] == sum(map(bool, LENGTHS))
        assert (source["bos"], source["eos"]) == (1.0, 1.0)


# Files


def flipped(content: bytes, at: int, bit: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def test_flipped_bits_over_all_files_are_found_and_the_file_is_named(out: Path) -> None:
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".arrow", ".yaml"}
    draw = random.Random(0)
    manifest = [path for path in files if path.name == "manifest.json"]
    others = [path for path in files if path not in manifest]
    for _ in range(share_of_examples(10)):
        for damaged in (others, manifest):  # without its manifest nothing else is looked at
            contents = {path: path.read_bytes() for path in damaged}
            for path, content in contents.items():
                path.write_bytes(flipped(content, draw.randrange(len(content)), draw.randrange(8)))
            findings = {finding.file for finding in verify(out).findings}
            assert findings >= {path.relative_to(out).as_posix() for path in damaged}
            for path, content in contents.items():
                path.write_bytes(content)
    assert verify(out).sound


def test_what_follows_the_end_of_a_shard_is_named_and_in_the_digest(out: Path) -> None:
    shard = out / shard_paths(out)[0]
    more = shard.read_bytes() + b"more"
    shard.write_bytes(more)
    said = found(out)
    assert f"{shard.name}: 4 bytes follow the end of the Arrow stream; expected none" in said
    assert has(said, f"{shard.name}: it has sha256 {hashlib.sha256(more).hexdigest()}; expected")


def test_a_file_that_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    checked = Checked()
    read_file(opener(tmp_path), tmp_path.name, checked, lambda _: None)
    assert list(map(str, checked.findings)) == [
        f"{tmp_path.name}: it cannot be read: Is a directory"
    ]
    assert not checked.complete


def test_swapped_duplicated_missing_and_surplus_shards_are_named(out: Path) -> None:
    first, second = shard_paths(out)[:2]
    content = {name: (out / name).read_bytes() for name in (first, second)}
    (out / first).write_bytes(content[second])
    (out / second).write_bytes(content[first])
    assert has(swapped := found(out), f"{first}: it has the content of {second}")
    assert has(swapped, f"{second}: it has the content of {first}")
    (out / first).write_bytes(content[first])
    assert has(twice := found(out), f"{second}: it has the content of {first}")
    assert any("is in the packs more than once" in line for line in twice)
    (out / second).write_bytes(content[second])
    (out / first).rename(out / "mine.arrow")
    verdict = verify(out)
    assert [str(finding) for finding in verdict.findings] == [
        f"{first}: it is missing; the manifest lists it with {len(content[first])} bytes",
        "mine.arrow: it is not in the manifest; expected nothing else in the directory",
    ]
    assert verdict.not_checked == ["the ledger and lost documents: not every shard could be read"]


def test_a_shard_cut_at_any_record_batch_boundary_is_found_even_when_the_manifest_agrees(
    out: Path,
) -> None:
    shard = shard_paths(out)[0]
    plant(out, lambda packs: None)  # written again, four packs to a record batch
    content, ends, packs = (out / shard).read_bytes(), [], 0
    source = pa.BufferReader(content)
    with pa.ipc.open_stream(source) as stream:
        ends.append((source.tell(), 0))
        for batch in stream:
            packs += len(batch)
            ends.append((source.tell(), packs))
    assert len(ends) >= 4
    tokens = [len(pack["tokens"]) for pack in packs_of(out)]
    for end, _ in ends:
        (out / shard).write_bytes(content[:end])
        assert f"{shard}: it has {end} bytes; expected {len(content)}" in found(out)
    for end, packs in ends[:-1]:
        (out / shard).write_bytes(content[:end])
        seal(out, shard, packs, sum(tokens[:packs]))
        said = found(out)
        assert not any("bytes; expected" in line or "sha256" in line for line in said)
        cut = f"{shard}: it ends after {packs} packs without the end marker of an Arrow stream"
        assert has(said, cut, "cut off")
        assert any("documents here" in line for line in said)


# Values, under right digests


def whole_document(packs: Packs) -> tuple[int, int, int, int]:
    """Pack, segment, begin and end of a whole document of 5 to 59 tokens."""
    for number, pack in enumerate(packs):
        for segment, (begin, end) in enumerate(itertools.pairwise(pack["cu_seqlens"])):
            if pack["document_starts"][segment] == 0 and 5 <= end - begin < 60:
                return number, segment, begin, end
    raise AssertionError("no such document")


def planted_at(out: Path, column: str, offset: int, value: int) -> str:
    """Change one value of a whole document, and return its place.

    `offset`: from its begin (from its end if negative).
    """
    number, segment, begin, end = whole_document(packs_of(out))
    place = begin + offset if offset >= 0 else end + offset
    of_tokens = column in ("tokens", "position_ids")

    def edit(packs: Packs) -> None:
        packs[number][column][place if of_tokens else segment] = value

    plant(out, edit)
    return f"{shard_paths(out)[0]} pack {number} segment {segment}"


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
        ("document_ids", 0, 120, ": the document id is 120; the sources have 120 rows"),
        ("document_ids", 0, -5, ": the document id is -5; expected an input row, or -1 for filler"),
        ("document_starts", 0, -1, ": document_starts has -1; expected 0 or more"),
        ("document_starts", 0, 5, "begins here at token 5; the tokens before it are in no pack"),
    ],
)
def test_a_wrong_value_under_right_digests_is_named_with_file_pack_and_segment(
    out: Path, column: str, offset: int, value: int, message: str
) -> None:
    place = planted_at(out, column, offset, value)
    assert has(said := found(out), place, message), said


def test_a_document_that_is_lost_is_counted_and_its_row_is_named(
    out: Path, zoo: Zoo, tmp_path: Path
) -> None:
    number, segment, begin, end = whole_document(packs_of(out))
    document = packs_of(out)[number]["document_ids"][segment]

    def lose(packs: Packs) -> None:
        pack = packs[number]
        for column in ("tokens", "position_ids"):
            del pack[column][begin:end]
        bounds = pack["cu_seqlens"]
        after = [bound - (end - begin) for bound in bounds[segment + 2 :]]
        pack["cu_seqlens"] = bounds[: segment + 1] + after
        del pack["document_ids"][segment], pack["document_starts"][segment]

    plant(out, lose)
    empty = [number for number, length in enumerate(LENGTHS) if not length]
    rows = sorted([*empty, document])
    (said,) = [line for line in found(out) if "documents here" in line]
    assert f"documents here, {119 - len(empty)} in the shards" in said
    lost = f"1 of the {len(rows)} rows that are in no pack are lost: row "
    assert lost + ", ".join(map(str, rows[:10])) in said
    merge([zoo["text"], out], tmp_path / "both")  # as rows of its second source
    assert lost + ", ".join(map(str, rows[:10])) in "".join(found(tmp_path / "both"))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (64, "row {row}: tokens 64 to 127 are in no pack"),
        (LENGTHS[LONGEST] // 64 * 64, "row {row} ends here, at token {start}, without EOS"),
    ],
    ids=["middle", "end"],
)
def test_a_lost_piece_of_a_document_is_named(out: Path, start: int, message: str) -> None:
    shard, number = next(
        (shard, number)
        for shard in range(len(shard_paths(out)))
        for number, pack in enumerate(packs_of(out, shard))
        if (LONGEST, start) in zip(pack["document_ids"], pack["document_starts"], strict=True)
    )
    plant(out, lambda packs: packs.__delitem__(number), shard)
    assert has(found(out), "", message.format(row=LONGEST, start=start))


@pytest.mark.parametrize("of", ["piece", "document"])
def test_a_document_or_piece_that_is_there_twice_is_named_with_its_places(
    out: Path, of: str
) -> None:
    packs, shard = packs_of(out), shard_paths(out)[0]
    start, message = (64, "are repeated here: tokens 64 to ")
    if of == "document":
        start, message = (0, "is in the packs more than once: {first} and {again}")
    number = next(n for n, pack in enumerate(packs) if start in pack["document_starts"])
    segment = packs[number]["document_starts"].index(start)
    plant(out, lambda packs: packs.append(packs[number]))
    first, again = (f"{shard} pack {pack} segment {segment}" for pack in (number, len(packs)))
    words = message.format(first=first, again=again).split(": ")
    assert any(all(word in line for word in words) for line in found(out)), found(out)


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
    assert has(said, "manifest.json: the ledger has tokens_packed")


def test_state_json_that_leaves_a_shard_out_is_found_under_right_digests(out: Path) -> None:
    write_dataset_files(out, shard_paths(out)[:-1], fingerprint="0" * 16, split="train")
    manifest, state = read_manifest(out), out / "state.json"
    data = json.loads(json.dumps(manifest.data))
    entry = next(entry for entry in data["files"] if entry["path"] == state.name)
    entry |= {"bytes": state.stat().st_size, "sha256": file_digest(state)}
    write_manifest(out, data, manifest.run)
    (said,) = found(out)
    assert has([said], "state.json: it lists ", "the manifest lists other shards of train")


# What cannot be checked


def test_columns_that_were_left_out_are_said_not_to_be_checked(zoo: Zoo, tmp_path: Path) -> None:
    build(replace(zoo.config("text"), output=str(tmp_path / "out"), columns=()))
    verdict = verify(tmp_path / "out")
    assert verdict.sound
    assert verdict.not_checked == [
        "documents, BOS and EOS: the shards have no document_ids and document_starts",
        "filler: the shards have neither document_ids nor segment_lengths",
    ]


@pytest.mark.parametrize("golden", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_outputs_of_every_format_version_are_read(golden: Path) -> None:
    """Their manifests and reports say three documents: they are there for readers."""
    verdict = verify(golden)
    kinds = set(verdict.findings.counts)
    assert kinds <= {"document", "lost documents", "ledger", "label at start"}
    assert verdict.not_checked == ["BOS and EOS: the manifest does not say what they are"]


def test_outputs_that_merge_made_are_sound_and_what_they_do_not_say_is_not_checked(
    zoo: Zoo, tmp_path: Path
) -> None:
    build(replace(zoo.config("text"), output=str(tmp_path / "wrapped"), strategy="wrapped"))
    merge([zoo["text"], zoo["text"]], tmp_path / "same")
    assert (verify(tmp_path / "same").sound, verify(tmp_path / "same").not_checked) == (True, [])
    both = tmp_path / "both"
    merge([zoo["text"], tmp_path / "wrapped"], both)
    verdict = verify(both, level="full")
    assert verdict.sound, list(map(str, verdict.findings))
    assert verdict.not_checked[0].startswith("cuts of documents: the merged outputs")
    sources = "documents against their sources: the manifest has no "
    assert verdict.not_checked[1].startswith(sources)
    number = whole_document(packs_of(both))[0]
    plant(both, lambda packs: packs.append(packs[number]))
    assert any("is in the packs more than once" in line for line in found(both))


def test_a_damaged_or_lost_manifest_is_the_one_finding(out: Path) -> None:
    content = (out / "manifest.json").read_bytes()
    (out / "manifest.json").write_bytes(content[:-2])
    verdict = verify(out)
    (finding,) = verdict.findings
    assert str(finding).startswith("manifest.json: it is not JSON that packprep wrote")
    assert verdict.not_checked == ["everything else: without a manifest nothing is known of it"]
    (out / "manifest.json").unlink()
    verdict = verify(out)
    (finding,) = verdict.findings
    lost = "manifest.json: it is missing, but report.json shows that packprep built this"
    assert str(finding).startswith(lost)
    assert verdict.tokens > 0, "the shards are still checked"


def test_a_folder_with_nothing_to_verify_is_wrong_usage(tmp_path: Path) -> None:
    with refused(InputError, "has neither manifest"):
        verify(tmp_path)
    with refused(InputError, "is not a directory"):
        verify(tmp_path / "nowhere")
    write_output(tmp_path / "out", {"train": [EXAMPLE]})
    (tmp_path / "out" / "manifest.json").unlink()
    with refused(InputError, "omit --level full"):
        verify(tmp_path / "out", level="full")
    result = run("verify", tmp_path)
    assert (result.code, result.err.startswith("packprep: "), result.err.count("\n")) == (
        2,
        True,
        1,
    )


# The command


def test_the_command_says_sound_or_prints_findings_by_kind_and_exits_1(out: Path) -> None:
    sound = run("verify", out)
    assert (sound.code, sound.err, sound.out.splitlines()[0]) == (0, "", str(out))
    assert re.search(r"result +sound\n", sound.out)
    assert "documents, 100.0000% with BOS, 100.0000% with EOS" in sound.out
    assert run("verify", out, "--quiet").out == ""
    place = planted_at(out, "tokens", 1, BOS)
    result = run("verify", out)
    assert (result.code, "1 finding\n" in result.out) == (1, True)
    assert result.out.startswith(f"doubled BOS  {place}")
    as_json = run("verify", out, "--json")
    loaded = json.loads(as_json.out)
    assert (as_json.code, loaded["sound"], loaded["counts"]) == (1, False, {"doubled BOS": 1})
    assert loaded["findings"][0]["kind"] == "doubled BOS"
    assert {"file", "pack", "segment", "what"} <= set(loaded["findings"][0])
