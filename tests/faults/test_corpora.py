"""Random corpora through whole builds: every token is on disk or in the ledger, by reason.

A corpus is a handful of documents in files of any format and compression, with bad rows planted; a
build is random options over it. What must come out is worked out here with `tokenizers` alone.
"""

import codecs
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.config.grammar.option import STRATEGY_NAMES
from packprep.engines.tokenizer import load_tokenizer
from packprep.inspect.report_file import read_report
from packprep.loaders import PackedShards
from packprep.packing.order import ORDERS
from packprep.schemas import check_files, check_ledger, read_manifest
from tests.helpers.corpus import expected_ids, save_tokenizer, tiny_tokenizer
from tests.helpers.examples import share_of_examples
from tests.helpers.files import PACK

from .kinds import FORMATS

# No line ends or quotes: the same text has to be one row in every format.
_WORDS = ["the cat", "sat", "größe", "東京", "🙂", "</s>", "<s>", "  ", "\u00a0", "0123456789" * 5]
_CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='",\ufeff')
_SENTENCE = st.lists(st.sampled_from([*_WORDS, "x" * 200]), max_size=12).map(" ".join)
TEXT = _SENTENCE | st.text(_CHARACTERS, max_size=40)
File = tuple[str, str, list[str | int]]


@st.composite
def files(draw: st.DrawFn) -> File:
    """Suffix, compression and rows of a file.

    A text, or the number of a kind of bad row of its format.
    """
    suffix = draw(st.sampled_from([*FORMATS]))
    kinds = st.integers(0, len(FORMATS[suffix].rows) - 1)
    rows = draw(st.lists(TEXT | TEXT | TEXT | kinds, min_size=1, max_size=8))
    first = FORMATS[suffix].rows[rows[0]].row or b"" if isinstance(rows[0], int) else b""
    if first.startswith((codecs.BOM_UTF8, b"[")):
        # At the start of a file the mark is in its place, and a bracket begins an array.
        rows.insert(0, "the cat")
    return suffix, draw(st.sampled_from(list(PACK))), rows


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a build that can be together."""
    values: dict[str, Any] = (
        {"max_length": [4, 8, 16, 64, 4096], "overflow": ["split", "truncate", "drop"]}
        | {"strategy": [name for name in STRATEGY_NAMES if name != "balanced"]}
        | {"order": list(ORDERS), "seed": [0, 1, 2, 3], "limit": [None, None, 5]}
        | {"min_document_tokens": [0, 1, 1, 5], "max_document_tokens": [None, None, 50]}
        | {"unit_size": [20, 200, 64_000_000], "window": [50, 500, 4_000_000_000]}
        | {"shard_size": [200, 5_000, 500_000_000], "num_proc": [1, 2], "engine": ["hf", "auto"]}
        | {"packs_multiple_of": ["1:fill", 1, "3:fill", 3]}
    )
    chosen = {name: draw(st.sampled_from(each)) for name, each in values.items()}
    if chosen["overflow"] == "split" and chosen["strategy"] != "wrapped":
        chosen["continuation_bos"] = draw(st.booleans())
        chosen["stride"] = draw(st.integers(0, 2))
    if chosen["overflow"] == "truncate":
        chosen["overflow"] += draw(st.sampled_from([":left", ""]))
    return chosen


def check_build(folder: Path, corpus: list[File], chosen: dict[str, Any]) -> None:
    """Build the corpus and take the output apart, or see that nothing was left."""
    texts, sources = _write(folder, corpus)
    texts = texts[: chosen["limit"]]
    rows = [(suffix, row) for suffix, _, rows in corpus for row in rows][: len(texts)]
    bad = (FORMATS[suffix].rows[row].reason for suffix, row in rows if isinstance(row, int))
    skipped = Counter(sorted(bad))
    tokenizer = load_tokenizer(save_tokenizer(folder / "tokenizer"))
    assert tokenizer.bos is not None
    assert tokenizer.eos is not None
    ends = tokenizer.bos.id, tokenizer.eos.id
    expected = expected_ids(texts, tiny_tokenizer(), *ends)
    config = BuildConfig(
        sources=tuple(sources),
        output=str(folder / "out"),
        tokenizer=str(folder / "tokenizer"),
        on_error="skip",
        max_row_size=5_000,
        sample_by="line" if ".txt" in (suffix for suffix, _, _ in corpus) else "document",
        **chosen,
    )
    try:
        build(config)
    except ValueError as error:
        # A file without one good row may not even have the column.
        no_column = "has no column" in str(error) and any(
            not any(isinstance(row, str) for row in file[2]) for file in corpus
        )
        known = ("no document is left", "drops all packs of the split", "holds no rows")
        assert no_column or any(words in str(error) for words in known), error
        assert not (folder / "out").exists()
        short = chosen["min_document_tokens"] > 1 or chosen["max_document_tokens"] is not None
        filtered = short or chosen["overflow"] == "drop" or chosen["packs_multiple_of"] == 3
        assert filtered or not any(expected), "something was left"
        return
    _check_output(folder / "out", expected, skipped, config, ends[0])


def _check_output(
    out: Path, expected: list[list[int]], skipped: Counter[str], config: BuildConfig, bos: int
) -> None:
    report, manifest = read_report(out), read_manifest(out)
    assert check_files(out, manifest, "sha256") == []
    check_ledger(manifest.ledger)
    assert report["documents"]["in"] == len(expected)
    assert report["documents"]["skipped"] == dict(skipped)
    assert report["documents"]["empty"] == sum(not tokens for tokens in expected) - skipped.total()
    book = report["tokens"]
    assert book["tokens_in"] == sum(map(len, expected))

    seen: list[Counter[int]] = [Counter() for _ in expected]
    stored = filler = continuation = 0
    for pack in PackedShards(out, verify=True):
        assert len(pack.tokens) <= config.max_length
        stored += len(pack.tokens)
        real = 0
        for document, start, values in pack.segments():
            tokens = values.tolist()
            if document == -1:
                continue
            assert document is not None
            assert start is not None
            real += len(tokens)
            if config.continuation_bos and start > 0:
                assert tokens[0] == bos
                tokens, continuation = tokens[1:], continuation + 1
            assert tokens == expected[document][start : start + len(tokens)]
            seen[document].update(range(start, start + len(tokens)))
        filler += len(pack.tokens) - real
    overlap = sum(count - 1 for places in seen for count in places.values())
    lost = book["tokens_in"] - sum(len(places) for places in seen)
    assert book["tokens_packed"] == stored
    assert book["filler"] == filler
    # Packs left out to make a multiple take repeated tokens and BOS with them: those are dropped
    # tokens too.
    left_out = book["overlap"] + book["continuation_bos"] - overlap - continuation
    assert left_out >= 0
    assert left_out == 0 or "remainder" in book["dropped"]
    assert book["truncated"] + sum(book["dropped"].values()) == lost + left_out


def _write(folder: Path, corpus: list[File]) -> tuple[list[str], list[str]]:
    """Texts in the order of their rows, "" for bad ones; names of the files."""
    texts, sources = [], []
    for number, (suffix, compression, rows) in enumerate(corpus):
        form = FORMATS[suffix]
        written: list[bytes | None] = []
        for row in rows:
            texts.append(row if isinstance(row, str) else "")
            written.append(form.rows[row].row if isinstance(row, int) else _row(suffix, row))
        path = folder / f"{number}{suffix}{compression}"
        path.write_bytes(PACK[compression](form.make(written)))
        sources.append(str(path))
    return texts, sources


def _row(suffix: str, text: str) -> bytes:
    """A good row as its format writes it."""
    if suffix == ".jsonl":
        return json.dumps({"text": text, "other": [1, None]}).encode()
    return b'1,"%s"' % text.encode() if suffix == ".csv" else text.encode()


@given(st.lists(files(), min_size=1, max_size=4), options())
@settings(max_examples=share_of_examples(16))
def test_every_token_of_random_corpora_is_on_disk_or_in_the_ledger(
    corpus: list[File], chosen: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_build(Path(folder), corpus, chosen)
