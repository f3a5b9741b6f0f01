"""Planted faults: changed bytes, and wrong outputs that were signed again."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.cli.main import cli
from packprep.packing.api import pack_lengths
from packprep.schemas.files import digest_of
from packprep.schemas.manifest import manifest_json
from packprep.support.errors import ConfigError
from tests.helpers.examples import share_of_examples
from tests.helpers.torch_models import skip_without

Packs = list[dict[str, Any]]
SHARD = "train/data-00000-of-00001.arrow"


def verify(out: Path, *options: str) -> int:
    """Exit code of the command."""
    return cli.main(["verify", str(out), *options], standalone_mode=False) or 0


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An output of 20 rows of ids with masks, some in pieces, in two splits."""
    folder = tmp_path_factory.mktemp("faults")
    rows = [
        {"ids": list(range(100 * n + 10, 100 * n + 10 + n)), "mask": [n % 4 > 0] * n}
        for n in range(1, 21)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        same: dict[str, Any] = {"sources": ["in.jsonl"], "ids": "ids,mask:mask", "tokenizer": 5000}
        build(BuildConfig(**same, output="out", max_length=16, holdout="20%"))
        assert verify(Path("out"), "--rebuild") == 0
        yield folder / "out"


def sign(out: Path, change: Callable[[dict[str, Any]], None] = lambda data: None) -> None:
    """Sign an output again as it is. change: of the data of the manifest."""
    value = json.loads((out / "manifest.json").read_bytes())
    data, run = value["data"], value["run"]
    for entry in [*data["files"], *run["files"]]:
        content = (out / entry["path"]).read_bytes()
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(data)
    data["identity"] = digest_of(data["inputs"])
    (out / "manifest.json").write_bytes(manifest_json(data, run))


def with_packs(change: Callable[[Packs], None], shard: str = SHARD) -> Callable[[Path], None]:
    """Plant what `change` makes of the packs of the first shard, with all counts right."""

    def plant(out: Path) -> None:
        path, counts = out / shard, dict[str, int]()
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as stream:
            schema, packs = stream.schema, stream.read_all().to_pylist()
        change(packs)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(packs, schema))
        counts = {
            "packs": len(packs),
            "segments": sum(len(pack["document_ids"]) for pack in packs),
            "tokens": sum(len(pack["tokens"]) for pack in packs),
        }

        def counted(data: dict[str, Any]) -> None:
            more = counts["tokens"] - data["splits"]["train"]["tokens"]
            data["splits"]["train"] = counts
            next(file for file in data["files"] if file["path"] == shard).update(counts)
            data["ledger"]["tokens_packed"] += more
            data["ledger"]["tokens_in"] += more

        report = json.loads((out / "report.json").read_bytes())
        more = counts["tokens"] - report["splits"]["train"]["tokens"]
        report["splits"]["train"] = counts
        report["tokens"]["tokens_packed"] += more
        report["tokens"]["tokens_in"] += more
        (out / "report.json").write_text(json.dumps(report))
        sign(out, counted)

    return plant


def set_(pack: int, column: str, at: int, value: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Plant another value of a pack."""

    def change(packs: Packs) -> None:
        packs[pack][column][at] = value(packs[pack][column][at])

    return with_packs(change)


def in_json(name: str, *keys: str, more: Any = 1) -> Callable[[Path], None]:
    """Plant a number in the report, or in the data of the manifest."""

    def changed(value: Any) -> None:
        for key in keys[:-1]:
            value = value[int(key) if key.isdigit() else key]
        value[keys[-1]] += more

    def plant(out: Path) -> None:
        if name == "manifest.json":
            sign(out, changed)
            return
        value = json.loads((out / name).read_bytes())
        changed(value)
        (out / name).write_text(json.dumps(value))
        sign(out)

    return plant


def _text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def plant(out: Path) -> None:
        content = (out / name).read_text()
        assert old in content
        (out / name).write_text(content.replace(old, new))
        sign(out)

    return plant


def _balanced(data: dict[str, Any]) -> None:
    """Tokens that nobody had, and that were lost."""
    data["ledger"]["tokens_in"] += 5
    data["ledger"]["truncated"] += 5


def _swap(packs: Packs) -> None:
    packs[0], packs[1] = packs[1], packs[0]


def _one_segment(packs: Packs) -> None:
    """Join two documents of a pack."""
    pack = next(pack for pack in packs if len(pack["document_ids"]) > 1)
    end = pack["cu_seqlens"].pop(1)
    for name in ("document_ids", "document_starts"):
        pack[name].pop(1)
    second = pack["cu_seqlens"][1]
    pack["position_ids"][:second] = range(second)
    pack["labels"][end] = pack["tokens"][end]


FAULTS: dict[str, Callable[[Path], None]] = {
    "a token that is another id": set_(0, "tokens", 2, lambda token: token + 1),
    "a label that is another id": set_(0, "labels", 2, lambda label: 7),
    "a label that was masked": set_(0, "labels", 2, lambda label: -100 if label > 0 else 77),
    "a position": set_(0, "position_ids", 2, lambda place: place + 1),
    "a boundary": set_(0, "cu_seqlens", 1, lambda end: end - 1),
    "two documents in one": with_packs(_one_segment),
    "a row": set_(0, "document_ids", 0, lambda row: row + 1),
    "a start": set_(0, "document_starts", 0, lambda start: start + 1),
    "packs in another order": with_packs(_swap),
    "a pack that is left out": with_packs(lambda packs: packs.__delitem__(0)),
    "a pack twice": with_packs(lambda packs: packs.append(packs[0])),
    "the ledger": lambda out: sign(out, _balanced),
    "the rows of a source": in_json("manifest.json", "sources", "0", "rows"),
    "the size of the vocabulary": in_json("manifest.json", "vocab_size"),
    "the limit of a pack": in_json("manifest.json", "max_length"),
    "tokens of the report": in_json("report.json", "tokens", "tokens_in"),
    "a share of the report": in_json("report.json", "utilization", more=0.1),
    "documents of the report": in_json("report.json", "documents", "in"),
    "an option": _text("build.yaml", "max_length: 16", "max_length: 15"),
    "state.json": _text("train/state.json", '"_split":"train"', '"_split":"test"'),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_was_signed_again_is_found(fault: str, sound: Path, tmp_path: Path) -> None:
    out = shutil.copytree(sound, tmp_path / "out")
    FAULTS[fault](out)
    assert verify(out) or verify(out, "--rebuild") == 1


SMALL = ("manifest.json", "report.json", "build.yaml", "dataset_dict.json", "train/state.json")


@settings(max_examples=share_of_examples(60))
@given(data=st.data())
def test_a_changed_byte_is_found(sound: Path, data: st.DataObject) -> None:
    _changed_byte(sound, data.draw(st.sampled_from([*SMALL, SHARD])), data.draw(st.integers(0)))


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_every_changed_byte_of_small_files_is_found(name: str, sound: Path) -> None:
    for at in range((sound / name).stat().st_size):
        _changed_byte(sound, name, at)


def _changed_byte(out: Path, name: str, at: int) -> None:
    content = (out / name).read_bytes()
    at %= len(content)
    for bit in (0, 5):
        changed = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
        (out / name).write_bytes(changed)
        try:
            assert verify(out) == 1
        finally:
            (out / name).write_bytes(content)


def test_a_planner_of_ones_own_is_not_built_again(sound: Path, tmp_path: Path) -> None:
    same: dict[str, Any] = {"sources": ["in.jsonl"], "ids": "ids", "tokenizer": 5000}
    config = BuildConfig(**same, output=str(tmp_path / "own"), max_length=16)
    build(config, planner=lambda lengths, max_length: pack_lengths(lengths, max_length, "stream"))
    with pytest.raises(ConfigError, match="a planner of its own"):
        verify(tmp_path / "own", "--rebuild")


def test_a_template_that_is_code_runs_only_if_the_user_names_it(
    record_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").symlink_to(record_inputs)
    monkeypatch.chdir(tmp_path)
    named = ("--chat-template", "in/renderer.py:render")
    rows = ("in/openai.jsonl", "--messages", "messages", "--tokenizer", "in/chat", "--limit", "9")
    cli.main(["build", *rows, *named, "-o", "out", "-q"], standalone_mode=False)
    for option in (["--rebuild"], ["--against", "transformers"]):
        with pytest.raises(ConfigError, match=r"the code in/renderer\.py:render; read it"):
            verify(Path("out"), *option)
    assert verify(Path("out"), "--rebuild", *named) == 0
    with pytest.raises(ConfigError, match="without a Jinja template"):
        verify(Path("out"), "--against", "transformers", *named)


def test_changed_sources_are_named(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("in.jsonl").read_bytes()
    Path("in.jsonl").write_bytes(before + b'{"ids": [5], "mask": [true]}\n')
    try:
        assert verify(sound, "--rebuild") == 1
    finally:
        Path("in.jsonl").write_bytes(before)
    assert (
        "inputs: the build had other inputs than there are now: in.jsonl" in capsys.readouterr().out
    )


TINY, CHAT = ("--tokenizer", "in/tiny"), ("--tokenizer", "in/chat", "--messages", "auto")
AGAINST: dict[str, tuple[str, ...]] = {
    "text": ("a.jsonl", *TINY),
    "a stride": ("a.jsonl", *TINY, "--stride", "7"),
    "the end": ("a.jsonl", *TINY, "--overflow", "truncate:left"),
    "pairs": ("pairs.jsonl", *TINY, "--pairs", "chosen,rejected"),
    **{name: (f"{name}.jsonl", *CHAT) for name in ("openai", "sharegpt", "parts", "tools")},
    "generation": ("openai.jsonl", *CHAT, "--chat-template", "in/keeps.jinja"),
    "turns": ("thoughts.jsonl", *CHAT, "--turns", "each"),
}


@pytest.mark.parametrize("name", AGAINST)
def test_rows_are_what_transformers_makes_of_them(
    name: str,
    record_inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    skip_without("transformers")
    (tmp_path / "in").symlink_to(record_inputs)
    monkeypatch.chdir(tmp_path)
    source, *options = AGAINST[name]
    command = ["build", f"in/{source}", "-o", "out", "--max-length", "128", "-q", *options]
    cli.main(command, standalone_mode=False)
    found = verify(Path("out"), "--against", "transformers")
    said = capsys.readouterr().out
    assert found == 0, said
    assert "documents are those of" in said
    assert ("labels of" in said) == (name == "generation")
    faults = {"other ids": ("tokens", lambda token: token + 1 if token < 100 else token - 1)}
    if name == "generation":
        faults["other labels"] = ("labels", lambda label: 5 if label < 0 else -100)
    for kind, (column, change) in faults.items():
        shutil.copytree("out", kind)

        def planted(packs: Packs, column: str = column, change: Any = change) -> None:
            packs[0][column][3] = change(packs[0][column][3])

        with_packs(planted, "data-00000-of-00001.arrow")(Path(kind))
        assert verify(Path(kind)) == 0
        assert verify(Path(kind), "--against", "transformers") == 1
        assert f"{kind}: in/{source} row" in capsys.readouterr().out
