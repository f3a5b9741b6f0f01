"""The manifest.

A written one is read, a changed one is noticed, a wrong one is refused before it is written.
"""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import (
    FORMAT_VERSION,
    FormatError,
    SplitCounts,
    canonical_json,
    check_files,
    check_ledger,
    digest_of,
    read_manifest,
)
from packprep.schemas.storage.writing import write_manifest
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, PLAIN, write_output

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "manifest.schema.json").read_text())
Table = dict[str, Any]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_output(tmp_path / "out", {"train": [EXAMPLE[:1], EXAMPLE[1:]], "validation": [EXAMPLE]})
    return tmp_path / "out"


def schema_accepts(manifest: Table) -> bool:
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(manifest))


def test_what_is_written_is_read_back(out: Path) -> None:
    manifest = read_manifest(out)
    written = write_manifest(out, manifest.data, manifest.run)
    assert written == manifest == read_manifest(str(out))
    assert manifest.format_version == FORMAT_VERSION == 1
    assert manifest.columns == PLAIN
    assert manifest.columns[0].meaning == "token ids"
    assert (manifest.max_length, manifest.vocab_size) == (8, 32)
    counts = SplitCounts(packs=2, segments=4, tokens=16)
    assert manifest.splits == {"train": counts, "validation": counts}
    assert (manifest.num_packs, manifest.num_tokens) == (4, 32)
    assert manifest.ledger["tokens_packed"] == 32
    assert manifest.identity == digest_of(manifest.data["inputs"])
    names = [f"train/data-0000{number}-of-00002.arrow" for number in range(2)]
    shards = [(shard.path, shard.packs, shard.tokens) for shard in manifest.shards("train")]
    assert shards == [(name, 1, 8) for name in names]
    assert [entry.path for entry in manifest.all_files[-2:]] == ["dataset_dict.json", "report.json"]
    assert not manifest.all_files[-1].is_shard


def test_what_is_written_has_the_digest_of_its_rest_and_is_of_the_json_schema(out: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for directory in (out, GOLDEN / "v1-example", GOLDEN / "v1-rich"):
        stored = json.loads((directory / "manifest.json").read_bytes())
        digest = digest_of({"data": stored["data"], "run": stored["run"]})
        assert read_manifest(directory).sha256 == stored["sha256"] == digest
        jsonschema.Draft202012Validator(SCHEMA).validate(stored)


_NEWER: Table = {"data": {"format_version": 3, "columns": "another form"}, "run": None}
NO_MANIFESTS: list[Any] = [{}, [], None, {"data": {}, "run": {}}]
_NO_MANIFEST = "is not a manifest; expected exactly the keys data, run and sha256"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((value, _NO_MANIFEST) for value in NO_MANIFESTS),
        ({"data": {}, "run": {}, "sha256": "", "x": 1}, _NO_MANIFEST),
        (_NEWER | {"sha256": digest_of(_NEWER)}, "version 3; this packprep reads up to 2; install"),
    ],
)
def test_json_that_is_no_manifest_or_a_newer_one_is_refused_before_any_other_check(
    tmp_path: Path, value: Any, words: str
) -> None:
    (tmp_path / "manifest.json").write_bytes(canonical_json(value))
    with pytest.raises(FormatError, match=words):
        read_manifest(tmp_path)


def test_unknown_keys_are_kept_and_ignored(out: Path) -> None:
    manifest = read_manifest(out)
    data = {**manifest.data, "mixture": {"a": 1}}
    write_manifest(out, data, manifest.run | {"hostname": None})
    assert read_manifest(out).data["mixture"] == {"a": 1}
    assert schema_accepts(json.loads((out / "manifest.json").read_bytes()))


def at(*path: Any, value: Any) -> Callable[[Table], None]:
    """A change that sets manifest[path[0]][path[1]]... to value; None as value removes it."""

    def change(manifest: Table) -> None:
        *parents, last = path
        table = manifest
        for key in parents:
            table = table[key]
        if value is None:
            del table[last]
        else:
            table[last] = value

    return change


_OUTSIDE = ("../x.arrow", "train/../../x", "/etc/passwd", "~/../..")
PATHS = (*_OUTSIDE, "a\\b", "C:x", "a//b", "./a", "a/.", "", "a/", "a\0b")
FORM = [
    (at("data", "format_version", value=0), "data.format_version is 0, not 1 or 2"),
    (at("data", "format_version", value=True), "data.format_version is True, not 1 or 2"),
    (at("data", "columns", value=None), "data has no columns"),
    (at("data", "columns", 0, "kind", value="line"), r"columns\[0\].kind is 'line', not token or "),
    (at("data", "columns", 0, "extra", value=1), r"columns\[0\].extra must not be there"),
    (at("data", "max_length", value=0), "max_length is 0, not a whole number from 1"),
    (at("data", "vocab_size", value="32"), "vocab_size is '32', not a whole number"),
    (at("data", "sources", 0, "documents", value=-1), r"sources\[0\].documents is -1, not"),
    (at("data", "sources", 0, "sha256", value="0"), "sha256 is '0', not 64 lower-case hex"),
    (at("data", "splits", "train", "rows", value=1), "splits.train.rows must not be there"),
    (at("data", "files", 0, "sha256", value="A" * 64), "is 'A+', not 64 lower-case hex"),
    (at("data", "files", 0, "bytes", value=1.5), "bytes is 1.5, not a whole number"),
    (at("data", "files", 0, "packs", value=None), r"files\[0\] has no packs"),
    (at("data", "files", 0, "mode", value=7), r"files\[0\].mode must not be there"),
    (at("data", "ledger", "filler", value=None), "data.ledger has no filler"),
    (at("data", "files", -1, "packs", value=1), r"files\[\d+\].packs must not be there"),
    (at("run", "files", 0, "split", value="train"), r"run.files\[0\].split must not be there"),
    (at("run", "files", value={}), "run.files is {}, not a list"),
    (at("data", "files", 0, "split", value=["train"]), r"split is \['train'\], not text"),
    (at("data", "splits", value={}), "splits is {}, not an object of at least 1 keys"),
    (
        at("data", "splits", "a/b", value={"packs": 0, "segments": 0, "tokens": 0}),
        "the key data.splits.a/b is 'a/b', not letters",
    ),
]
FORM += [
    (at(part, "files", -1, "path", value=path), "a relative path inside its directory")
    for part in ("data", "run")
    for path in PATHS
]
MEANING = [
    (at("data", "splits", "train", value=None), "has the split 'train'; the splits are validation"),
    (at("data", "identity", value="0" * 64), "its inputs give"),
    (at("data", "columns", 2, "name", value="ends"), "has no cu_seqlens"),
    (at("data", "columns", 1, "name", value="tokens"), "lists tokens twice"),
    (at("data", "splits", "train", "packs", value=3), "split train has 3 packs of 16 tokens; its"),
    (at("data", "files", 0, "tokens", value=7), "its shards add up to 2 packs of 15 tokens"),
    (at("data", "files", 0, "split", value="test"), "has the split 'test'; the splits are train"),
    (
        at("data", "files", 1, "path", value="train/data-00000-of-00002.arrow"),
        "is listed twice, or is the manifest itself",
    ),
    (at("run", "files", 0, "path", value="manifest.json"), "is listed twice, or is the manifest"),
    (at("data", "files", 0, "path", value="train/a.arrow"), "has train/a.arrow as a shard of"),
    (at("data", "ledger", "tokens_in", value=33), "1 tokens are unaccounted for"),
    (
        lambda manifest: manifest["data"]["ledger"].update(tokens_in=33, tokens_packed=33),
        "ledger has tokens_packed 33; the splits hold 32 tokens",
    ),
]


@pytest.mark.parametrize(
    ("change", "message", "is_form"),
    [*((*case, True) for case in FORM), *((*case, False) for case in MEANING)],
)
def test_a_manifest_that_contradicts_itself_is_neither_written_nor_read(
    out: Path, tmp_path: Path, change: Callable[[Table], None], message: str, is_form: bool
) -> None:
    """Neither is one of another form, which the JSON Schema refuses, too."""
    manifest = read_manifest(out)
    wrong = copy.deepcopy({"data": manifest.data, "run": manifest.run})
    change(wrong)
    with pytest.raises(FormatError, match=message):
        write_manifest(tmp_path, wrong["data"], wrong["run"])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    signed = wrong | {"sha256": digest_of(wrong)}
    (tmp_path / "manifest.json").write_bytes(canonical_json(signed))
    with pytest.raises(FormatError, match=message):
        read_manifest(tmp_path)
    assert not (is_form and schema_accepts(signed))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value inside a JSON value."""
    listed = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else listed:
        yield (*path, key)
        yield from places(inner, (*path, key))


_ATOMS = st.none() | st.booleans() | st.integers(-2, 2**70) | st.sampled_from(["", "train", "../x"])
_KEYS = st.sampled_from(["path", "packs", "a"])
ANYTHING = st.recursive(
    _ATOMS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=2),
    max_leaves=3,
)


@given(st.data())
def test_any_value_anywhere_gives_a_manifest_that_can_be_used_or_a_format_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    manifest = json.loads((GOLDEN / "v1-rich" / "manifest.json").read_bytes())
    path = data.draw(st.sampled_from([path for path in places(manifest) if path[0] != "sha256"]))
    value = data.draw(ANYTHING)
    at(*path, value=value)(manifest)
    rest = {"data": manifest.get("data"), "run": manifest.get("run")}
    directory = tmp_path_factory.mktemp("changed")
    (directory / "manifest.json").write_bytes(canonical_json(rest | {"sha256": digest_of(rest)}))
    try:
        found = read_manifest(directory)
    except FormatError:
        return
    assert schema_accepts(json.loads((directory / "manifest.json").read_bytes()))
    shards = [entry for split in found.splits for entry in found.shards(split)]
    assert found.num_packs == sum(entry.packs or 0 for entry in shards)
    assert found.columns
    assert found.max_length * found.vocab_size > 0
    assert found.identity
    check_ledger(found.ledger)
    assert check_files(directory, found)  # not one of the files is there
