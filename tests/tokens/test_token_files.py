import dataclasses
import json
import re
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from packprep import BuildConfig, build
from packprep.config.options import options_in
from packprep.engines.backends import load_engine
from packprep.engines.parity import EngineChoice, choose_engine
from packprep.engines.tokenizer import Tokenizer, load_tokenizer
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.sources.position import Extent
from packprep.sources.source import Source
from packprep.sources.units import Part, Slice
from packprep.support.errors import InputError
from packprep.tokens import encode
from packprep.tokens.encode import cut_text, encode_table
from packprep.tokens.store import parse_receipt, read_token_receipt, stored, tokens_key
from packprep.tokens.token_files import seal, tokenize, tokenize_slice
from tests.helpers.corpus import expected_ids, save_tokenizer, texts, tiny_tokenizer, write_jsonl


@pytest.fixture(scope="module")
def policy() -> Tokenizer:
    return load_tokenizer(tiny_tokenizer(), bos="<s>", eos="</s>")


@pytest.fixture(scope="module")
def engine(policy: Tokenizer) -> EngineChoice:
    return choose_engine("hf", policy.json)


def unit_of(documents: list[str | None], number: int = 0) -> Slice:
    table = pa.table({"text": pa.array(documents, pa.large_string())})
    size = sum(len((text or "").encode()) for text in documents)
    skipped = {"null": documents.count(None)} if None in documents else {}
    parts = (Part(0, len(documents), skipped),)
    return Slice(unit=number, documents=len(documents), text_bytes=size, table=table, parts=parts)


def ids_in(path: Path) -> list[list[int]]:
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    return cast(list[list[int]], table["tokens"].to_pylist())


def test_a_token_file_keeps_every_row_and_its_receipt_is_true(
    tmp_path: Path, policy: Tokenizer, engine: EngineChoice
) -> None:
    documents = ["The cat sat", "", None, "on the log"]
    receipt = tokenize_slice(unit_of(documents, number=3), tmp_path, engine, policy, BuildConfig())
    path = tmp_path / "unit-000003-000.arrow"
    assert ids_in(path) == expected_ids([text or "" for text in documents], tiny_tokenizer(), 0, 1)
    assert (receipt.xxh3, receipt.bytes) == (
        xxhash.xxh3_128_hexdigest(path.read_bytes()),
        path.stat().st_size,
    )
    assert receipt.tokens == sum(map(len, ids_in(path)))
    assert receipt.extent == Extent(
        unit=3, slice=0, first_document=0, documents=4, text_bytes=len("The cat saton the log")
    )
    assert receipt.parts == (Part(0, 4, {"null": 1}),)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "unit-000003-000.arrow",
        "unit-000003-000.json",
    ]


def test_a_receipt_on_disk_has_these_keys(
    tmp_path: Path, policy: Tokenizer, engine: EngineChoice
) -> None:
    receipt = tokenize_slice(unit_of(["one", None], 2), tmp_path, engine, policy, BuildConfig())
    written = json.loads((tmp_path / "unit-000002-000.json").read_bytes())
    assert written.pop("sha256") == digest_of(written)
    assert written == {
        "unit": 2,
        "slice": 0,
        "first_document": 0,
        "documents": 2,
        "text_bytes": 3,
        "tokens": receipt.tokens,
        "verified": receipt.verified,
        "parts": [{"source": 0, "rows": 2, "skipped": {"null": 1}}],
        "cut": {},
        "left_out": {},
        "turns": {},
        "bytes": receipt.bytes,
        "xxh3": receipt.xxh3,
    }
    assert parse_receipt(written) == receipt
    path = tmp_path / "unit-000002-000.json"
    path.write_bytes(canonical_json(written))  # as older versions wrote it
    assert read_token_receipt(tmp_path, receipt.name) == receipt


def test_a_flipped_bit_anywhere_in_a_receipt_is_noticed(
    tmp_path: Path, policy: Tokenizer, engine: EngineChoice
) -> None:
    receipt = tokenize_slice(unit_of(["one", None], 2), tmp_path, engine, policy, BuildConfig())
    path = tmp_path / "unit-000002-000.json"
    right = path.read_bytes()
    for place in range(len(right)):
        for bit in range(8):
            wrong = bytearray(right)
            wrong[place] ^= 1 << bit
            path.write_bytes(wrong)
            read = read_token_receipt(tmp_path, receipt.name, digests=False)
            assert read in (None, receipt), (place, bit)  # equal: a space after the end


def test_the_size_of_batches_never_changes_the_file(
    tmp_path: Path, policy: Tokenizer, engine: EngineChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = unit_of(list(texts(60)))
    whole = tokenize_slice(unit, tmp_path, engine, policy, BuildConfig())
    monkeypatch.setattr(encode, "BATCH_BYTES", 100)
    assert tokenize_slice(unit, tmp_path, engine, policy, BuildConfig()).xxh3 == whole.xxh3


def test_a_finished_store_is_found_again_and_an_unfinished_or_damaged_one_is_not(
    tmp_path: Path, policy: Tokenizer, engine: EngineChoice
) -> None:
    config = BuildConfig(num_proc=2)
    units = [unit_of(["one"], 0), unit_of(["two", "three"], 1)]
    heard: list[int] = []
    assert stored(tmp_path) is None
    files = tokenize(
        iter(units), tmp_path, lambda: engine, policy, config, lambda file: heard.append(file.unit)
    )
    assert heard == [0, 1]
    assert stored(tmp_path) is None
    seal(tmp_path, files)
    assert stored(tmp_path) == files
    written = (tmp_path / "unit-000000-000.json").read_bytes()
    (tmp_path / "unit-000000-000.json").write_bytes(b"")  # as a power failure may leave it
    assert stored(tmp_path) is None
    (tmp_path / "unit-000000-000.json").write_bytes(written)
    (tmp_path / "unit-000001-000.arrow").write_bytes(b"cut off")
    assert stored(tmp_path) is None
    (tmp_path / "files.json").unlink()
    assert stored(tmp_path) is None


def test_the_key_changes_with_everything_that_decides_tokens_and_with_nothing_else(
    policy: Tokenizer,
) -> None:
    source = Source(name="a.jsonl", kind="json", path=None, bytes=1, sha256="0" * 64)
    key = tokens_key([source], policy, BuildConfig())
    same = [
        {"max_length": 64},
        {"strategy": "greedy"},
        {"num_proc": 7},
        {"seed": 9},
        {"engine": "hf"},
    ]
    other = [
        {"text_column": "body"},
        {"limit": 3},
        {"truncate_at": "x"},
        {"unit_size": 7},
        {"on_error": "skip"},
    ]
    assert all(tokens_key([source], policy, BuildConfig(**options)) == key for options in same)  # type: ignore[arg-type]
    assert all(tokens_key([source], policy, BuildConfig(**options)) != key for options in other)  # type: ignore[arg-type]
    assert tokens_key([dataclasses.replace(source, sha256="1" * 64)], policy, BuildConfig()) != key
    assert tokens_key([source], dataclasses.replace(policy, eos=None), BuildConfig()) != key


def test_no_option_that_shapes_tokens_can_be_forgotten_in_the_key(
    policy: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(name="a.jsonl", kind="json", path=None, bytes=1, sha256="0" * 64)
    key, identity = tokens_key([source], policy, BuildConfig()), BuildConfig().identity()
    changing = set()
    for name in identity:
        monkeypatch.setattr(
            BuildConfig, "identity", lambda _, name=name: identity | {name: "another value"}
        )
        if tokens_key([source], policy, BuildConfig()) != key:
            changing.add(name)
    # max_tokens enters as config.tokens_to_read: in a mix it stops no reading.
    assert changing == identity.keys() & options_in("read", "rows", "tokens") - {"max_tokens"}


def test_text_is_cut_at_the_first_match_and_counted_by_source() -> None:
    table = pa.table({"text": pa.array(["ab|cd|e", "whole", None, "|"], pa.large_string())})
    cut, counted = cut_text(table, re.compile(r"\|"), [Part(0, 2, {}), Part(1, 2, {})])
    assert cut["text"].to_pylist() == ["ab", "whole", None, ""]
    assert counted == {"0": (1, 5), "1": (1, 1)}


def test_work_that_is_told_to_stop_ends_within_a_batch(
    policy: Tokenizer, engine: EngineChoice
) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(CancelledError):
        encode_table(unit_of(["text"]).table, np.arange(1), engine, policy, BuildConfig(), stop)


@pytest.mark.parametrize(("vocab_size", "kind"), [(65_536, "uint16"), (65_537, "int32")])
def test_ids_take_two_bytes_where_the_vocabulary_allows_it(
    tmp_path: Path, policy: Tokenizer, engine: EngineChoice, vocab_size: int, kind: str
) -> None:
    documents = ["The cat sat", "", None, "on the log"]
    wide = dataclasses.replace(policy, vocab_size=vocab_size)
    tokenize_slice(unit_of(documents), tmp_path, engine, wide, BuildConfig())
    path = tmp_path / "unit-000000-000.arrow"
    assert str(pa.ipc.open_stream(path.read_bytes()).schema.field("tokens").type.value_type) == kind
    assert ids_in(path) == expected_ids([text or "" for text in documents], tiny_tokenizer(), 0, 1)


def test_an_id_that_two_bytes_do_not_hold_is_an_error_and_not_another_id(policy: Tokenizer) -> None:
    class Far:
        name, version = "far", "0"
        notes: list[str] = []  # noqa: RUF012

        def encode(self, batch: "pa.Array[Any]") -> tuple[np.ndarray, np.ndarray]:
            return np.full(len(batch), 65_536 + 7, np.int32), np.arange(len(batch) + 1)

    far = EngineChoice(engine=Far(), reference=lambda: load_engine("hf", policy.json), gate={})
    with pytest.raises(
        InputError,
        match=r"the engine returned the id 65,543, but the vocabulary has [\d,]+; use --engine hf",
    ):
        encode_table(
            unit_of(["text"]).table, np.arange(1), far, policy, BuildConfig(verify_engine=0.0)
        )


class _Wrong:
    """The reference, but for one id of one document."""

    name, version = "wrong", "0"
    notes: list[str] = []  # noqa: RUF012

    def __init__(self, tokenizer_json: bytes, victim: str) -> None:
        self._engine = load_engine("hf", tokenizer_json)
        self._victim = victim

    def encode(self, batch: "pa.Array[Any]") -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = self._engine.encode(batch)
        ids = ids.copy()
        for document, text in enumerate(batch.to_pylist()):
            if text == self._victim:
                ids[offsets[document]] += 1
        return ids, offsets


def test_one_wrong_id_in_ten_thousand_documents_stops_a_build_that_verifies_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [f"document {number}" for number in range(10_000)]
    source = write_jsonl(tmp_path / "a.jsonl", documents)

    def choose(requested: str, tokenizer_json: bytes, **_: Any) -> EngineChoice:
        reference = load_engine("hf", tokenizer_json)
        wrong = _Wrong(tokenizer_json, documents[7351])
        return EngineChoice(engine=wrong, reference=lambda: reference, gate={})

    monkeypatch.setattr("packprep.execute.stages.choose_engine", choose)
    options: dict[str, Any] = {
        "sources": (str(source),),
        "output": str(tmp_path / "out"),
        "tokenizer": str(save_tokenizer(tmp_path / "tokenizer")),
    }
    with pytest.raises(InputError, match=r"document 7351: from token 0 on engine wrong"):
        build(BuildConfig(**options, verify_engine=1.0))
    assert not (tmp_path / "out").exists()
    assert build(BuildConfig(**options, verify_engine=0.0)).run["verified_documents"] == 0


def test_a_store_may_be_looked_at_without_reading_its_tokens(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", texts(20))
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer"))
    output, kept = str(tmp_path / "out"), str(tmp_path / "store")
    build(BuildConfig(sources=(str(source),), output=output, keep_tokens=kept, tokenizer=tokenizer))
    [store] = (tmp_path / "store").iterdir()
    [file] = store.glob("*.arrow")
    assert stored(store) == stored(store, digests=False) != None  # noqa: E711
    changed = bytearray(file.read_bytes())
    changed[-40] ^= 1
    file.write_bytes(changed)
    assert stored(store) is None
    assert stored(store, digests=False) is not None
    file.write_bytes(changed[:-1])
    assert stored(store, digests=False) is None


@pytest.mark.parametrize("name", ["fastokens", "gigatoken"])
def test_shards_are_the_same_bytes_whichever_engine_made_the_ids(tmp_path: Path, name: Any) -> None:
    pytest.importorskip(name, reason=f"the engine {name} is not installed")
    source = write_jsonl(tmp_path / "a.jsonl", texts(200))
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer"))
    outputs = {}
    engine: Any
    for engine in ("hf", name):
        config = BuildConfig(
            sources=(str(source),),
            output=str(tmp_path / engine),
            tokenizer=tokenizer,
            engine=engine,
            max_length=64,
        )
        try:
            outputs[engine] = build(config)
        except (
            InputError
        ) as error:  # its Unicode tables are newer than the reference's, and the gate says so
            assert name == "gigatoken"
            assert "gives other ids than tokenizers" in str(error)
            return
    assert outputs["hf"].data == outputs[name].data
    assert outputs[name].run["engine"]["engine"] == name
    assert (
        json.loads((tmp_path / name / "report.json").read_bytes())["packs"]
        == outputs["hf"].num_packs
    )
