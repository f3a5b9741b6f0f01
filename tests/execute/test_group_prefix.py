"""Rows with the same value of `group_prefix` share prefixes, and every row is still there once."""

import json
import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas.ledger import LEDGER_KEYS, check_ledger
from packprep.support.errors import InputError
from packprep.tokens.store import stored
from packprep.windows.documents import held_out, read_documents
from packprep.windows.specs import form_windows
from tests.helpers.command import done, run
from tests.helpers.corpus import write_jsonl
from tests.helpers.errors import refused

PROMPTS: list[Any] = ["p0", "p1", None, 3, True]


def answers(groups: int = 12, each: int = 4, seed: int = 0) -> list[dict[str, Any]]:
    """Token ids of several answers to each of some prompts, in a random order."""
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for group in range(groups):
        prompt = [draw.randrange(100) for _ in range(20)]
        name = PROMPTS[group] if group < len(PROMPTS) else f"p{group}"
        rows += [
            {
                "ids": prompt + [draw.randrange(100) for _ in range(draw.randint(1, 9))],
                "prompt": name,
                "kind": group % 2,
            }
            for _ in range(each)
        ]
    draw.shuffle(rows)
    return rows


def build_ids(folder: Path, rows: list[list[dict[str, Any]]], **options: Any) -> Path:
    """Build token ids with trees, each list a file of its own."""
    files = [write_jsonl(folder / f"{n}.jsonl", each) for n, each in enumerate(rows)]
    settings: dict[str, Any] = {
        "sources": tuple(map(str, files)),
        "output": str(folder / "out"),
        "input_ids_column": "ids",
        "vocab_size": 100,
        "max_length": 64,
        "share_prefixes": True,
        "group_prefix": "prompt",
    }
    build(BuildConfig(**settings | options))
    return folder / "out"


def check_closed(tokens: Any) -> None:
    check_ledger({key: tokens[key] for key in (*LEDGER_KEYS, "shared")})


def rows_of(output: Path, split: str = "train") -> dict[int, list[int]]:
    """Tokens of each row by its number."""
    rows: dict[int, list[int]] = {}
    for batch in PackedLoader(PackedShards(output, split=split), packs_per_batch=1, trees=True):
        plain = batch.unshared()
        assert plain.document_ids is not None
        for number, (first, last) in zip(
            plain.document_ids.tolist(), pairwise(plain.cu_seqlens.tolist()), strict=True
        ):
            assert number not in rows
            rows[number] = plain.tokens[first:last].tolist()
    return rows


def test_answers_to_a_prompt_share_it_and_every_row_is_there(tmp_path: Path) -> None:
    rows = answers()
    output = build_ids(tmp_path, [rows[:20], rows[20:]])
    assert rows_of(output) == {number: row["ids"] for number, row in enumerate(rows)}
    report = read_report(output)
    assert report["tokens"]["shared"] >= 12 * 3 * 20
    assert report["groups_apart"] == {"groups": 0, "rows": 0}
    for source in report["sources"]:
        check_closed(source["tokens"])
        assert source["tokens"]["shared"] > 0
    verdict = verify(output, level="full")
    assert verdict.sound
    number = max(number for number, row in enumerate(rows) if row["prompt"] is None)
    place = f"{tmp_path}/0.jsonl:{number}" if number < 20 else f"{tmp_path}/1.jsonl:{number - 20}"
    [found] = json.loads(done("show", output, "--find", place, "--json").out)
    assert found["tokens"] == len(rows[number]["ids"])
    shown = done("show", output, "--doc", place)
    assert " ".join(map(str, rows[number]["ids"][1:20])) in " ".join(shown.out.split())


def test_rows_that_share_tokens_keep_their_own_labels(tmp_path: Path) -> None:
    rows = answers(3)
    for number, row in enumerate(rows):
        first = 5 + 5 * (number % 2)
        row["labels"] = [-100] * first + row["ids"][first:]
    output = build_ids(tmp_path, [rows], labels_column="labels")
    found = dict[int, list[int]]()
    for batch in PackedLoader(PackedShards(output), packs_per_batch=1, trees=True):
        plain = batch.unshared()
        spans = pairwise(plain.cu_seqlens.tolist())
        for number, (first, last) in zip(plain.document_ids.tolist(), spans, strict=True):
            found[number] = plain.labels[first:last].tolist()
    assert found == {number: row["labels"] for number, row in enumerate(rows)}
    assert read_report(output)["tokens"]["shared"] > 0


@pytest.mark.parametrize("options", [{"holdout": 0.3}, {"epochs": 2}])
def test_groups_in_several_windows_are_counted(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = answers(30)
    split_by = {"unit_size": 500, "window": 3_000, "keep_tokens": str(tmp_path / "kept")}
    output = build_ids(tmp_path, [rows], **split_by, **options)
    [store] = (tmp_path / "kept").iterdir()
    config = BuildConfig(**split_by | options)  # type: ignore[arg-type]
    files = stored(store)
    assert files is not None
    groups = apart = 0
    for epoch in range(config.epochs):
        places: dict[str, set[tuple[int, bool]]] = defaultdict(set)
        members: dict[str, int] = defaultdict(int)
        for number, window in enumerate(form_windows(files, config.window, config.ordering, epoch)):
            for file in window:
                documents = read_documents(store, [file])
                outs = held_out(documents, config.holdout, config.seed).tolist()
                for id_, out in zip(documents.id.tolist(), outs, strict=True):
                    name = json.dumps(rows[id_]["prompt"])
                    places[name].add((number, config.holdout > 0 and out))
                    members[name] += 1
        names = [name for name, where in places.items() if len(where) > 1]
        groups += len(names)
        apart += sum(members[name] for name in names)
    assert groups > 0
    assert read_report(output)["groups_apart"] == {"groups": groups, "rows": apart}


@pytest.mark.parametrize("mix", [{}, {"weights": "1", "max_epochs": 1.0}])
def test_all_rows_of_a_group_are_held_out_or_none(tmp_path: Path, mix: dict[str, Any]) -> None:
    rows = answers(40)
    output = build_ids(tmp_path, [rows], holdout=0.3, **mix)
    splits = {
        split: {json.dumps(rows[number]["prompt"]) for number in rows_of(output, split)}
        for split in ("train", "validation")
    }
    assert 4 <= len(splits["validation"]) <= 20
    # Rows without a group are drawn one by one.
    assert splits["train"] & splits["validation"] <= {"null"}
    assert len(splits["train"] | splits["validation"]) == 40


def test_sides_of_pairs_of_a_group_are_in_one_pack(tmp_path: Path) -> None:
    """Sides that share nothing tie their trees together; if a pack is too small, they are alone."""
    options: dict[str, Any] = {"pair_columns": ("chosen", "rejected"), "overflow": "drop"}
    options["input_ids_column"] = "auto"
    prompt, apart = list(range(20)), [5] * 24
    rows = [{"chosen": [*prompt, n, n], "rejected": [*prompt, n, 90 + n]} for n in range(5)]
    for more in (
        [],
        [{"chosen": apart, "rejected": [99, *apart]}],
        [{"chosen": prompt, "rejected": [5] * 40}],
    ):
        tied = [row | {"prompt": "p"} for row in [*rows, *more]]
        output = build_ids(tmp_path, [tied], **options, overwrite=True)
        assert read_report(output)["tokens"]["shared"] == 9 * 20 + 5  # the sides share one more
        assert verify(output, level="full").sound


def test_a_token_store_without_the_column_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    build_ids(tmp_path, [answers()], group_prefix=None, keep_tokens=str(kept))
    arguments = ("--max-length", 64, "--share-prefixes")
    planned = run("plan", kept, *arguments, "--group-prefix", "prompt")
    assert planned.code != 0
    assert "--group-prefix is an option of packprep tokenize" in planned.err
    build_ids(tmp_path, [answers()], overwrite=True, keep_tokens=str(tmp_path / "more"))
    planned = done("plan", tmp_path / "more", *arguments, "--group-prefix", "prompt")


def test_a_list_as_a_group_is_a_finding_of_its_row(tmp_path: Path) -> None:
    rows = [*answers(2), {"ids": [1], "prompt": [1]}]
    with refused(InputError, "'prompt' is a list, expected text"):
        build_ids(tmp_path, [rows])
