import io
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from packprep import BuildConfig, build
from packprep.config.aliases import recorded_in
from packprep.config.stages import Parsing, Reading, Tokenizing
from packprep.engines.backends import load_engine
from packprep.engines.parity import EngineChoice, choose_engine
from packprep.engines.tokenizer import Tokenizer, load_tokenizer
from packprep.execute.worker import Working
from packprep.output.sign_off import name_shards
from packprep.schemas import FormatError
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.sources.position import Extent
from packprep.sources.source import Source
from packprep.sources.units import Part, Slice
from packprep.support.errors import InputError
from packprep.tokens.encode import Encoder
from packprep.tokens.store import (
    TokenFile,
    parse_receipt,
    read_token_receipt,
    stored,
    text_options,
    tokens_key,
)
from packprep.tokens.token_files import seal, tokenize_slice, tokenize_slices
from tests.helpers.corpus import build_options, expected_ids, texts, tiny_tokenizer
from tests.helpers.errors import refused


@pytest.fixture(scope="module")
def policy() -> Tokenizer:
    return load_tokenizer(tiny_tokenizer(), bos="<s>", eos="</s>")


@pytest.fixture(scope="module")
def engine(policy: Tokenizer) -> EngineChoice:
    return choose_engine("hf", policy.json)


DOCUMENTS = ["The cat sat", "", None, "on the log"]
IDS = expected_ids([text or "" for text in DOCUMENTS], tiny_tokenizer(), 0, 1)


def encoder(engine: EngineChoice, policy: Tokenizer) -> Encoder:
    return Encoder(engine, policy, Parsing(), Tokenizing(verify_engine=0.0))


def unit_of(documents: Sequence[str | None], number: int = 0) -> Slice:
    table = pa.table({"text": pa.array(documents, pa.large_string())})
    size = sum(len((text or "").encode()) for text in documents)
    skipped = {"null": documents.count(None)} if None in documents else {}
    parts = (Part(0, len(documents), skipped),)
    return Slice(unit=number, documents=len(documents), text_bytes=size, table=table, parts=parts)


@pytest.fixture
def written(tmp_path: Path, policy: Tokenizer, engine: EngineChoice) -> Callable[..., TokenFile]:
    """Write the token file of a unit into tmp_path. Returns its receipt."""
    return lambda unit, policy=policy: tokenize_slice(unit, tmp_path, encoder(engine, policy))


def types_and_ids(path: Path) -> tuple[str, list[list[int]]]:
    tokens = pa.ipc.open_stream(path.read_bytes()).read_all()["tokens"]
    return str(tokens.type.value_type), cast(list[list[int]], tokens.to_pylist())


def test_a_token_file_keeps_every_row_and_its_receipt_is_true(
    tmp_path: Path, written: Callable[..., TokenFile]
) -> None:
    receipt = written(unit_of(DOCUMENTS, number=3))
    path = tmp_path / "unit-000003-000.arrow"
    assert types_and_ids(path) == ("uint16", IDS)
    assert receipt.xxh3 == xxhash.xxh3_128_hexdigest(path.read_bytes())
    assert receipt.bytes == path.stat().st_size
    assert receipt.tokens == sum(map(len, IDS))
    assert receipt.extent == Extent(
        unit=3, slice=0, first_document=0, documents=4, text_bytes=len("The cat saton the log")
    )
    assert receipt.parts == (Part(0, 4, {"null": 1}),)
    content = json.loads((tmp_path / "unit-000003-000.json").read_bytes())
    assert content.pop("sha256") == digest_of(content)
    assert content["parts"] == [{"source": 0, "rows": 4, "skipped": {"null": 1}, "unread": {}}]
    # as older versions wrote it
    (tmp_path / "unit-000003-000.json").write_bytes(canonical_json(content))
    assert read_token_receipt(tmp_path, receipt.name) == parse_receipt(content) == receipt


def test_a_flipped_bit_anywhere_in_a_receipt_is_noticed(
    tmp_path: Path, written: Callable[..., TokenFile]
) -> None:
    receipt = written(unit_of(["one", None], 2))
    path = tmp_path / "unit-000002-000.json"
    right = path.read_bytes()
    for place, bit in itertools.product(range(len(right)), range(8)):
        wrong = bytearray(right)
        wrong[place] ^= 1 << bit
        path.write_bytes(wrong)
        read = read_token_receipt(tmp_path, receipt.name, digests=False)
        assert read in (None, receipt), (place, bit)  # equal: a space after the end


def test_a_finished_store_is_found_again_and_an_unfinished_or_damaged_one_is_not(
    tmp_path: Path, policy: Tokenizer, engine: EngineChoice
) -> None:
    units = iter([unit_of(["one"], 0), unit_of(["two", "three"], 1)])
    heard: list[int] = []
    assert stored(tmp_path) is None
    files = tokenize_slices(
        *(
            units,
            tmp_path,
            lambda piece, _: tokenize_slice(piece, tmp_path, encoder(engine, policy)),
        ),
        report=lambda file: heard.append(file.unit),
    )
    assert (heard, stored(tmp_path)) == ([0, 1], None)
    seal(tmp_path, files)
    assert stored(tmp_path) == files
    receipt = (tmp_path / "unit-000000-000.json").read_bytes()
    (tmp_path / "unit-000000-000.json").write_bytes(b"")  # as a power failure may leave it
    assert stored(tmp_path) is None
    (tmp_path / "unit-000000-000.json").write_bytes(receipt)
    (tmp_path / "unit-000001-000.arrow").write_bytes(b"cut off")
    assert stored(tmp_path) is None
    (tmp_path / "files.json").unlink()
    assert stored(tmp_path) is None


SOURCE = Source(name="a.jsonl", kind="json", path=None, bytes=1, sha256="0" * 64)


def test_the_key_changes_with_exactly_the_options_that_shape_tokens(policy: Tokenizer) -> None:
    def key(identity: dict[str, object]) -> str:
        return tokens_key([SOURCE], policy, text_options(identity, None))

    identity = BuildConfig().identity()
    changing = {
        name for name in identity if key(identity | {name: "another value"}) != key(identity)
    }
    # max_tokens enters as config.tokens_to_read: in a mix it stops no reading.
    assert changing == identity.keys() & recorded_in(Reading, Parsing, Tokenizing) - {"max_tokens"}


def test_text_is_cut_at_the_first_match_and_counted_by_source(
    tmp_path: Path, policy: Tokenizer, engine: EngineChoice
) -> None:
    parts = (Part(0, 2, {}), Part(1, 2, {}))
    unit = replace(unit_of(["ab|cd|e", "whole", None, "|"]), parts=parts, first_rows=(0, 0))
    cutting = replace(encoder(engine, policy), parsing=Parsing(truncate_at=r"\|"))
    assert tokenize_slice(unit, tmp_path, cutting).cut == {"0": (1, 5), "1": (1, 1)}
    ids = expected_ids(["ab", "whole", "", ""], tiny_tokenizer(), 0, 1)
    assert types_and_ids(tmp_path / "unit-000000-000.arrow")[1] == ids


def test_work_that_is_told_to_stop_ends_within_a_batch(
    policy: Tokenizer, engine: EngineChoice
) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(CancelledError):
        encoder(engine, policy).encode(unit_of(["text"]).table, np.arange(1), stop)


def test_a_worker_process_tells_of_each_batch(
    policy: Tokenizer, engine: EngineChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.tokens.encode.BATCH_BYTES", 1)
    told = io.StringIO()
    rows = unit_of(["one", "two", "three"]).table
    encoder(engine, policy).encode(rows, np.arange(3), Working(told))
    assert told.getvalue() == "..."


class _Engine:
    """An engine whose ids are those of another one, changed."""

    name, version = "wrong", "0"
    notes: list[str] = []  # noqa: RUF012

    def __init__(self, tokenizer_json: bytes, change: Callable[[str], int]) -> None:
        self._engine, self._change = load_engine("hf", tokenizer_json), change

    def encode(self, batch: "pa.Array[Any]") -> tuple[np.ndarray, np.ndarray]:
        ids, offsets = self._engine.encode(batch)
        ids = ids.copy()
        for document, text in enumerate(batch.to_pylist()):
            ids[offsets[document]] += self._change(cast(str, text))
        return ids, offsets


def test_an_id_that_two_bytes_do_not_hold_is_refused_and_not_another_id(policy: Tokenizer) -> None:
    engine = _Engine(policy.json, lambda _: 65_536)
    far = EngineChoice(engine=engine, reference=lambda: load_engine("hf", policy.json), gate={})
    with refused(InputError, "the engine returned the id 65,", "vocabulary has 320", "--engine hf"):
        encoder(far, policy).encode(unit_of(["text"]).table, np.arange(1))


def test_one_wrong_id_in_ten_thousand_documents_stops_a_build_that_verifies_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [f"document {number}" for number in range(10_000)]

    def choose(requested: str, tokenizer_json: bytes, **_: Any) -> EngineChoice:
        wrong = _Engine(tokenizer_json, lambda text: text == documents[7351])
        reference = load_engine("hf", tokenizer_json)
        return EngineChoice(engine=wrong, reference=lambda: reference, gate={})

    monkeypatch.setattr("packprep.execute.stages.choose_engine", choose)
    options = build_options(tmp_path, {"a.jsonl": documents})
    with refused(InputError, "document 7351: from token 0 on", "wrong"):
        build(BuildConfig(**options, verify_engine=1.0))
    assert not (tmp_path / "out").exists()
    assert build(BuildConfig(**options, verify_engine=0.0)).run["verified_documents"] == 0


@pytest.mark.parametrize("materialize", ["shards", "index"])
def test_a_build_does_not_sign_what_it_cannot_read(
    materialize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = build_options(tmp_path, {"a.jsonl": texts(9)}, engine="hf", materialize=materialize)

    def spoiled(staging: Path, *arguments: Any, **settings: Any) -> Any:
        entries = name_shards(staging, *arguments, **settings)
        pattern = "tokens/*/*.arrow" if materialize == "index" else "data-*.arrow"
        for file in staging.glob(pattern):  # 0xFFFF or more is no id of a vocabulary of 320
            file.write_bytes(file.read_bytes().replace(b"\1\0\0\0", b"\xff\xff\xff\x7f"))
        return entries

    with monkeypatch.context() as patched:
        patched.setattr("packprep.execute.stages.name_shards", spoiled)
        # Digests would show it first; a writer that writes wrong tokens has the right digests.
        patched.setattr("packprep.output.sign_off._check_written", lambda *_: None)
        with pytest.raises(FormatError, match="the output is not signed, because it cannot be"):
            build(BuildConfig(**options))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.incomplete" / "manifest.json").exists()
    shutil.rmtree(tmp_path / "out.incomplete")
    build(BuildConfig(**options))
