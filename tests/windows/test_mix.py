"""Mixes: shares, windows and the account for token files made here."""

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.loaders import PackedShards
from packprep.packing.account import Sums
from packprep.schemas import check_ledger
from packprep.support.errors import InputError
from packprep.tokens.store import TokenFile
from packprep.windows.documents import read_documents
from packprep.windows.mix import Mix
from packprep.windows.planner import account_by_source, packed_tokens, plan_window
from tests.helpers import documents as made
from tests.helpers.corpus import build_options
from tests.helpers.files import config
from tests.test_laws import configs

from .test_documents import token_file, write_tokens

POLICY = made.tokenizer()


def token_files(folder: Path, units: Sequence[Sequence[tuple[int, int]]]) -> list[TokenFile]:
    """A token file for each unit, a list of (source, tokens) of documents; sources ascend.

    A token is 4 bytes of text.
    """
    files, first = [], 0
    for number, rows in enumerate(units):
        tokens = pa.array(
            [list(range(10, 10 + length)) for _, length in rows], pa.list_(pa.int32())
        )
        sources, total = [source for source, _ in rows], sum(length for _, length in rows)
        parts = tuple(sources.count(source) for source in range(max(sources) + 1))
        file = token_file(number, first=first, parts=parts)
        file = replace(file, text_bytes=4 * total, tokens=total)
        write_tokens(folder / file.name, pa.table({"tokens": tokens}))
        files.append(file)
        first += len(rows)
    return files


def mix_of(folder: Path, units: Sequence[Sequence[tuple[int, int]]], settings: BuildConfig) -> Mix:
    """Source s belongs to entry s."""
    entries = range(len(settings.sources))
    return Mix(
        token_files(folder, units),
        folder,
        list(entries),
        settings.mix_rules(),
        lambda documents, rules: packed_tokens(documents, POLICY, rules),
    )


def played(mix: Mix, options: BuildConfig) -> tuple[list[Sums], dict[str, list[Counter[int]]], Any]:
    """Plan all windows.

    Returns the account of each source, the copies of each document by split and phase, and the
    tokens of train that are packed, [windows, sources].
    """
    count, splits = len(options.sources), ("train", "validation") if options.holdout else ("train",)
    totals, packed = mix.left_out(POLICY), np.zeros((len(mix.windows), count), np.int64)
    copies = {split: [Counter[int]() for _ in options.mix_rules().packs] for split in splits}
    for split in splits:
        for number, window in enumerate(mix.windows):
            assert window.draw is not None
            documents = window.draw(split)
            alone = len(set(documents.id.tolist())) == len(documents)
            assert alone or options.strategy == "balanced"
            copies[split][window.run].update(documents.id.tolist())
            plan = plan_window(documents, POLICY, window.rules, seed=number)
            for source, sums in enumerate(account_by_source(plan, POLICY, count, plan.packs)[:-1]):
                totals[source] += sums
                packed[number, source] += sums.tokens_kept * (split == "train")
    return totals, copies, packed


@st.composite
def mixes(draw: st.DrawFn) -> tuple[BuildConfig, list[list[tuple[int, int]]]]:
    """A config with two or three sources, and units of documents.

    A document is (source, tokens), with 0 tokens or at least 3.
    """
    count = draw(st.integers(2, 3))
    document = st.one_of(st.just(0), st.integers(3, 40))
    rows = [
        (source, draw(document)) for source in range(count) for _ in range(draw(st.integers(1, 25)))
    ]
    units, first = [], 0
    while first < len(rows):
        size = draw(st.integers(1, 12))
        units.append(rows[first : first + size])
        first += size
    kind = draw(st.sampled_from(["weight", "amount"]))
    tables: list[dict[str, Any]] = []
    for source in range(count):
        amount: dict[str, Any] = {
            "weight": draw(st.integers(1, 5)),
            "max_epochs": draw(st.integers(1, 6)) / 2,
        }
        if kind == "amount":
            amount = draw(
                st.sampled_from([{"epochs": 0.4}, {"epochs": 2.5}, {"max_tokens": 60}, {}])
            )
        tables.append({"path": f"{source}.jsonl"} | amount)
    assume(any(len(table) > 1 for table in tables))
    settings = replace(
        draw(configs()),
        sources=tuple(tables),
        holdout=draw(st.sampled_from([0.0, 0.0, 0.3])),
        window=draw(st.sampled_from([150, 600, 10**9])),
        max_tokens=draw(st.sampled_from([None, None, 200])),
    )
    return settings, units


@given(mixes())
def test_shares_windows_and_the_ledger_of_every_source_hold_for_every_strategy(
    case: tuple[BuildConfig, list[list[tuple[int, int]]]],
) -> None:
    options, units = case
    count = len(options.sources)
    source_of = [source for rows in units for source, _ in rows]
    length_of = np.array([length for rows in units for _, length in rows], np.int64)
    with tempfile.TemporaryDirectory() as folder:
        try:
            mix = mix_of(Path(folder), units, options)
        except InputError as error:
            assert "has no tokens to mix" in str(error)
            return
        for note in mix.notes():
            if limited := re.search(r"as (\d)\.jsonl allows: its [\d,]+ tokens (\S+)", note):
                table: Any = options.sources[int(limited[1])]
                epochs = table.get("max_epochs", 1)
                assert limited[2] == ("once;" if epochs == 1 else f"{epochs:g}")
        everything = read_documents(Path(folder), token_files(Path(folder), units))
        longest = int(packed_tokens(everything, POLICY, options.pack_rules()).max(initial=0))
        totals, by_phase, packed = played(mix, options)
    copies = {
        split: sum(by_phase.get(split, []), Counter[int]()) for split in ("train", "validation")
    }
    drawn = copies["train"] + copies["validation"]
    assert not copies["train"].keys() & copies["validation"].keys()
    assert not copies["validation"] or max(copies["validation"].values()) == 1
    for source in range(count):
        ids = [document for document, its in enumerate(source_of) if its == source]
        book = totals[source].ledger
        check_ledger(book)
        assert book["tokens_in"] == sum(
            int(length_of[document]) * max(1, drawn[document]) for document in ids
        )
        assert book["dropped"].get("not_drawn", 0) == sum(
            int(length_of[document]) for document in ids if not drawn[document]
        )
        again = {document: drawn[document] - 1 for document in ids if drawn[document] > 1}
        assert totals[source].repeated_documents == sum(again.values())
        assert totals[source].repeated_tokens == sum(
            int(length_of[d]) * times for d, times in again.items()
        )
        assert all(drawn[document] == 1 for document in ids if not length_of[document])
    wanted = np.array(mix.cells.wanted[0][:count])
    assert (packed.sum(axis=0) <= wanted).all()
    assert (wanted - packed.sum(axis=0) <= max(longest - 1, 0)).all(), (
        "short by less than a document"
    )
    # Each source has two streams: documents drawn once more, and the rest.
    assert (abs(packed - packed.sum(axis=0) / len(mix.windows)) <= 2 * longest).all(), (
        "every window holds the shares"
    )
    most = max(window.documents for window in mix.windows)
    assert most <= drawn.total() <= (most + 1) * len(mix.windows)


def test_groups_of_different_files_keep_their_codes(tmp_path: Path) -> None:
    files = {
        f"{language}.jsonl": [{"text": f"{language} {n}", "lang": language} for n in range(9)]
        for language in ("en", "de")
    }
    options = build_options(tmp_path, files, group_column="lang", unit_size=20)
    twice = [{"path": path, "epochs": 2} for path in options["sources"]]
    build(config(**options | {"sources": twice}))
    for pack in PackedShards(tmp_path / "out"):
        assert len({int(segment.document_id or 0) // 9 for segment in pack.segments()}) == 1
