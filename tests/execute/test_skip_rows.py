"""A build that leaves out rows of a list is the build of sources without these rows."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import BuildConfig, build, pack, tokenize
from packprep.execute.pipeline import build_share, of_build
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.preview.estimate import estimate
from packprep.preview.lengths import read_lengths
from packprep.preview.stored_lengths import options_to_plan, store_tokens
from packprep.preview.sweep import sweep
from packprep.schemas.canonical import digest_of
from packprep.schemas.manifest import read_manifest
from packprep.schemas.storage.writing import write_manifest
from packprep.support.errors import ConfigError
from packprep.support.progress import Silent
from tests.chat.test_build import thoughtful
from tests.chat.test_turn_builds import SMALL
from tests.execute.test_options_as_index import BASES, ids_rows, pair_rows, piece_rows, text_rows
from tests.helpers.command import done
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.errors import assert_says, refused

ROWS: dict[str, list[dict[str, Any]]] = {
    "text": text_rows(40),
    "ids": ids_rows(),
    "pairs": pair_rows(20),
    "chat": thoughtful(8),
    "pieces": piece_rows(16),
}
TREES = {"share_prefixes": 2}
FILES = ("a", "b")
LISTED = {"a": (1, 3), "b": (0, -1)}
"""Rows of each file that are left out; -1 is the last one."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a tokenizer."""
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": SMALL}
    save_tokenizer(tmp_path / "tokenizer", config=side)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_sources(kind: str, *, blank: bool = False) -> np.ndarray[Any, Any]:
    """Write files of all rows into all/, without listed rows into less/, and the list.

    blank: rows of less/ are bad ones instead, so that all others keep their ids. Returns the ids of
    the rows of less/ in all/.
    """
    rows, first, lines, ids = ROWS[kind], 0, [], []
    for name in FILES:
        of_file = rows[: len(rows) // 2] if name == "a" else rows[len(rows) // 2 :]
        listed = {row % len(of_file) for row in LISTED[name]}
        less = [
            {} if row in listed else each
            for row, each in enumerate(of_file)
            if blank or row not in listed
        ]
        for folder, content in (("all", of_file), ("less", less)):
            Path(folder).mkdir(exist_ok=True)
            write_jsonl(Path(folder) / f"{name}.jsonl", content)
        lines += [f"all/{name}.jsonl:{row}" for row in sorted(listed)]
        ids += [first + row for row in range(len(of_file)) if blank or row not in listed]
        first += len(of_file)
    Path("list.txt").write_text("\n\n".join(reversed(lines)) + "\n")
    return np.array(ids)


def options_of(kind: str, folder: str, **more: Any) -> dict[str, Any]:
    base = BASES[kind]
    tokenizer = {} if "input_ids_column" in base else {"tokenizer": "tokenizer"}
    common = {"max_length": 64, "engine": "hf", "num_proc": 2, "verify_engine": 0.0}
    sources = tuple(f"{folder}/{name}.jsonl" for name in FILES)
    skip = {"skip_rows": "list.txt"} if folder == "all" else {}
    return common | tokenizer | base | skip | {"sources": sources} | more


def packs_of(output: str, ids: np.ndarray[Any, Any] | None = None) -> list[dict[str, Any]]:
    """All packs of all splits, epochs and phases. ids: new number of each document."""
    packs = []
    manifest = read_manifest(Path(output))
    for split in manifest.splits:
        for epoch in range(manifest.epochs):
            for each in PackedShards(output, split=split, epoch=epoch):
                columns = {name: values.tolist() for name, values in each.columns.items()}
                for name in {"document_ids", "pair_ids", "row_ids"} & {*columns}:
                    if ids is not None:
                        columns[name] = [ids[i] if i >= 0 else i for i in columns[name]]
                packs.append(columns)
    return packs


def figures(output: str) -> dict[str, Any]:
    """report.json without what another run or another source of the same packs changes.

    Documents and tokens that skip_rows left out are taken off, once for each epoch.
    """
    report = json.loads((Path(output) / "report.json").read_text())
    others = ("seconds", "peak_memory_bytes", "tokens_per_second", "sha256")
    of_reading = ("left_out_example", "left_out_in_turns")  # of all rows, as `left_out` below
    report = {name: value for name, value in report.items() if name not in (*others, *of_reading)}
    for part in (report, *report["sources"], *report.get("epochs", [])):
        gone = part["tokens"]["dropped"].pop("skip_rows", 0)
        part["tokens"]["tokens_in"] -= gone
        if "documents" in part and not isinstance(part["documents"], int):
            part["documents"]["in"] -= part["documents"]["dropped"].pop("skip_rows", 0)
            part["documents"]["in"] -= sum(part["documents"].pop("skipped").values())
        for name in ("bos_added", "eos_added", "bos_rate", "eos_rate", "left_out", "turns", "name"):
            part.pop(name, None)  # these count what was read
            part["tokens"].pop(name, None)
        part.pop("tokens_lost", None)
        part.pop("tokens_lost_share", None)
    for source in report["sources"]:
        source.pop("bytes", None)
    return report


CASES: list[tuple[str, dict[str, Any]]] = [
    ("text", {}),
    ("text", {"overflow": "drop", "min_document_tokens": 5, "max_length": 24}),
    ("text", {"stride": 4, "max_length": 16, "continuation_bos": True}),
    ("text", {"strategy": "wrapped"}),
    ("text", {"strategy": "wrapped", "epochs": 2}),
    ("text", {"strategy": "greedy", "epochs": 2, "shuffle_documents": True}),
    ("text", {"strategy": "stream", "order": "input", "shuffle_documents": True}),
    ("text", {"group_column": "set"}),
    ("text", {"group_column": "set", "min_document_tokens": 12}),
    ("text", {"packs_multiple_of": "4:fill"}),
    ("text", {"packs_multiple_of": 4}),
    ("text", {"epochs": 2}),
    ("text", {"epochs": 2, "materialize": "shards"}),
    ("chat", {"max_length": 256}),
    ("chat", {"turns": "each", "max_length": 256}),
    ("chat", {"turns": "auto", "max_length": 256}),
    ("chat", {"turns": "each", "max_length": 256, **TREES}),
    ("pairs", {}),
    ("pairs", {**TREES, "group_prefix": "prompt", "max_length": 128}),
    ("ids", {**TREES, "group_prefix": "prompt"}),
    ("ids", {"group_column": "set", **TREES, "materialize": "index"}),
    ("ids", {"boundaries": "eos:9"}),
    ("pieces", {}),
]
"""Builds that draw nothing by the numbers of documents."""
DRAWN: list[tuple[str, dict[str, Any]]] = [
    ("text", {"holdout": 0.3, "seed": 1}),
    ("text", {"holdout": 0.3, "group_column": "set"}),
    ("text", {"weights": (3, 1)}),
    ("text", {"weights": (3, 1), "max_epochs": 2.5, "holdout": 0.2}),
    ("text", {"weights": (1, 1), "max_tokens": 300, "epochs": 2}),
    (
        "text",
        {
            "phases": [
                {"tokens": 300, "weights": [1, 2], "max_length": 32},
                {"tokens": 250, "weights": [1, 1], "max_length": 64},
            ]
        },
    ),
]
"""Builds that draw documents by their numbers."""


def shortened(cases: list[tuple[str, dict[str, Any]]], *numbers: int) -> list[Any]:
    """Cases of which all but these are long."""
    return [
        pytest.param(*case, marks=[] if number in numbers else [pytest.mark.long])
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("kind", "more"), shortened(CASES, 7, 16, 19))
def test_rows_of_a_list_are_as_if_their_lines_were_deleted(kind: str, more: dict[str, Any]) -> None:
    ids = write_sources(kind)
    listed = build(BuildConfig(**options_of(kind, "all", output="listed", **more)))
    build(BuildConfig(**options_of(kind, "less", output="fewer", **more)))
    assert packs_of("listed") == packs_of("fewer", ids)
    assert figures("listed") == figures("fewer")
    assert listed.ledger["dropped"]["skip_rows"] > 0
    assert list(map(str, verify("listed").findings)) == []


@pytest.mark.parametrize(("kind", "more"), shortened(DRAWN, 1, 3))
def test_draws_by_number_are_as_if_rows_of_the_list_had_no_text(
    kind: str, more: dict[str, Any]
) -> None:
    """All rows keep their numbers, so no other row changes its split."""
    write_sources(kind, blank=True)
    listed = build(BuildConfig(**options_of(kind, "all", output="listed", **more)))
    build(BuildConfig(**options_of(kind, "less", output="fewer", on_error="skip", **more)))
    assert packs_of("listed") == packs_of("fewer")
    assert listed.ledger["tokens_packed"] > 0 < listed.ledger["dropped"]["skip_rows"]
    assert list(map(str, verify("listed").findings)) == []


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"epochs": 2}, marks=pytest.mark.long),
        pytest.param({"weights": (3, 1)}, marks=pytest.mark.long),
        pytest.param(TREES, marks=pytest.mark.long),
    ],
)
def test_a_store_and_tasks_of_an_array_leave_out_the_rows_of_the_build(
    more: dict[str, Any],
) -> None:
    kind = "ids" if more == TREES else "text"
    write_sources(kind)
    options = options_of(kind, "all", unit_size=300, window=600, output="built", **more)
    built = build(BuildConfig(**options))
    tasks = options | {"output": "tasks"}
    for number in range(2):
        build_share(BuildConfig(**tasks, part=f"{number}/2"))
    assert build(BuildConfig(**tasks, part="merge")).data == built.data
    in_order = options | {"order": "input", "output": "early"}
    if "epochs" not in more:
        alone = build(BuildConfig(**in_order | {"num_proc": 1, "output": "alone"}))
        assert build(BuildConfig(**in_order)).data == alone.data
    text = {name: value for name, value in options.items() if name not in {*more, "skip_rows"}}
    of_text = {**text, "output": "store"}
    for name in ("max_length", "window"):
        of_text.pop(name)
    tokenize(BuildConfig(**of_text))
    of_packs = {"max_length": 64, "window": 600, "skip_rows": "list.txt", **more}
    assert pack(["store"], output="packed", **of_packs).data == built.data
    assert pack(["store"], output="whole", max_length=64).ledger["dropped"] == {}
    predicted = estimate(of_build(BuildConfig(**options | {"output": ""})))["prediction"]
    exact = "weights" not in more  # sizes of a mix are predicted up to a document
    assert predicted["tokens_packed"] == pytest.approx(
        built.ledger["tokens_packed"], rel=0 if exact else 0.05
    )


@pytest.mark.parametrize("share", [1, 0.5])
def test_a_plan_of_text_or_of_a_store_leaves_out_the_rows(share: float) -> None:
    write_sources("text")
    options = options_of("text", "all")
    plain = {name: value for name, value in options.items() if name != "skip_rows"}

    def planned(options: dict[str, Any]) -> int:
        if (tokens := store_tokens(options["sources"])) is not None:
            options = options_to_plan(tokens, options)
        config = BuildConfig(**options)
        with read_lengths(config, share, Silent(), tokens) as lengths:
            rules = config.pack_rules(lengths.skipped)
            return sweep(lengths, [rules], config.writing)[0].tokens_packed

    built = build(BuildConfig(**options | {"output": "out", "keep_tokens": "store"}))
    whole = planned(plain)
    if share == 1:
        store = options | {"sources": ("store",)}
        assert planned(options) == planned(store) == built.ledger["tokens_packed"] < whole
    else:
        less = options_of("text", "less")
        assert planned(options) < whole
        assert planned(options) == pytest.approx(planned(less), rel=0.3)
    with refused(ConfigError, "skip_rows needs the rows of sources", "out"):
        planned(options | {"sources": ("out",)})


def test_an_output_that_grows_takes_the_rows_of_its_new_files(here: Path) -> None:
    write_sources("text")
    options = options_of("text", "all", output="grown")
    first = options | {"sources": ("all/a.jsonl",)}
    Path("a.txt").write_text("all/a.jsonl:1\nall/a.jsonl:3\n")
    build(BuildConfig(**first | {"skip_rows": "a.txt"}))
    for sources in (options["sources"], ("all/b.jsonl",)):  # both name rows of a.jsonl
        grown = build(BuildConfig(**options | {"sources": sources, "append": True}))
    last = len(ROWS["text"]) // 2 - 1
    listed = [source.get("skip_rows") for source in grown.data["inputs"]["sources"]]
    assert listed == [[1, 3], [0, last]]
    assert grown.ledger["dropped"]["skip_rows"] > 0
    documents = Counter(i for each in packs_of("grown") for i in each["document_ids"])
    build(BuildConfig(**options | {"output": "whole"}))
    assert documents == Counter(i for each in packs_of("whole") for i in each["document_ids"])
    assert list(map(str, verify("grown").findings)) == []
    Path("list.txt").write_text("all/a.jsonl:4\n")
    write_jsonl(here / "all" / "c.jsonl", ROWS["text"][:3])
    for new in ((*options["sources"], "all/c.jsonl"), ("all/c.jsonl",)):
        with refused(ConfigError, "all/a.jsonl row 4", "has already"):
            build(BuildConfig(**options | {"sources": new, "append": True}))


def test_the_rows_of_the_list_are_part_of_the_build_and_their_file_is_not() -> None:
    write_sources("text")
    options = options_of("text", "all", output="out")
    built = build(BuildConfig(**options))
    Path("moved.txt").write_text("\n".join(sorted(Path("list.txt").read_text().split())))
    assert build(BuildConfig(**options | {"skip_rows": "moved.txt"})).data == built.data
    Path("list.txt").unlink()
    settings = (Path("out") / "build.yaml").read_text()
    assert "# skip_rows listed 4 rows." in settings
    assert "skip_rows: list.txt" in settings
    again = build(BuildConfig(**options | {"skip_rows": "out", "output": "again"}))
    assert again.data == built.data
    Path("moved.txt").write_text("all/a.jsonl:0\n")
    with refused(ConfigError, "skip_rows was 4 rows, now 1"):
        build(BuildConfig(**options | {"skip_rows": "moved.txt"}))
    Path("moved.txt").write_text("".join(f"all/a.jsonl:{row}\n" for row in range(4)))
    with refused(ConfigError, "skip_rows was 4 rows, now 4 others"):
        build(BuildConfig(**options | {"skip_rows": "moved.txt"}))
    build(BuildConfig(**options | {"skip_rows": None, "output": "whole"}))
    with refused(ConfigError, "whole", "left out no rows"):
        build(BuildConfig(**options | {"skip_rows": "whole"}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("all/a.jsonl:1\n\nall/a.jsonl:20\n", ("list.txt line 3", "all/a.jsonl has 20 rows", 20)),
        ("all/a.jsonl:1\nall/c.jsonl:0\n", ("list.txt line 2", "no source all/c.jsonl")),
        (".jsonl:1\n", ("list.txt line 1", "no source .jsonl")),
        ("17\n", ("list.txt line 1", "has no source", "all/a.jsonl:17")),
        ("a.jsonl\n", ("list.txt line 1", "'a.jsonl' is not SOURCE:ROW")),
        (b"\xff\xfe", ("list.txt is not text in UTF-8",)),
        (None, ("list.txt: No such file", "packprep spike --rows")),
    ],
)
def test_a_line_that_names_no_row_is_refused_with_its_number(
    content: str | bytes | None, words: tuple[Any, ...]
) -> None:
    write_sources("text")
    if content is None:
        Path("list.txt").unlink()
    else:
        Path("list.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    with refused(ConfigError, *words):
        build(BuildConfig(**options_of("text", "all", output="out")))
    assert not Path("out").exists()


def test_a_row_that_a_limit_leaves_unread_is_none_and_ends_of_paths_name_sources() -> None:
    write_sources("text")
    Path("list.txt").write_text("a.jsonl:1\na.jsonl:12\nb.jsonl:3\n")
    built = build(BuildConfig(**options_of("text", "all", output="out", limit=5)))
    documents = {i for each in packs_of("out") for i in each["document_ids"]}
    assert documents == {2, 3, 4}  # row 0 is empty
    assert built.data["inputs"]["sources"][0]["skip_rows"] == [1, 12]
    shown = done("show", "out", "--find", "a.jsonl:1").out
    assert_says(shown, "all/a.jsonl row 1 is in no pack: skip_rows of the build lists it")
    assert_says(done("show", "out", "--find", "a.jsonl:0").out, "it was empty, skipped or dropped")


def test_verify_finds_a_row_in_packs_that_the_build_left_out() -> None:
    write_sources("text")
    build(BuildConfig(**options_of("text", "all", output="out") | {"skip_rows": None}))
    path = Path("out") / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["data"]["inputs"]["sources"][0]["skip_rows"] = [2]
    path.unlink()
    data = manifest["data"] | {"identity": digest_of(manifest["data"]["inputs"])}
    write_manifest(Path("out"), data, manifest["run"])
    found = [str(finding) for finding in verify("out").findings]
    assert any("all/a.jsonl row 2 is here, but skip_rows of the build lists it" in f for f in found)
