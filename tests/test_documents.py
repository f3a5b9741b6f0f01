"""Claims of public texts about packing, in the smallest cases that show them: documents.md."""

import ast
import importlib
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.cli.main import COMMANDS, cli
from packprep.look.verify import verify
from packprep.packing.sampler import MultipackSampler
from tests.helpers import written
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer
from tests.test_budget import MODULES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "documents.md").read_text()


def rows(page: str) -> list[list[str]]:
    """Cells of the rows of all tables of a page."""
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return [row for row in cells if row[0] != "statement" and "---" not in row[0]]


def headings(page: Path) -> set[str]:
    """Anchors of the headings of a page."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-") for words in found}


def test_a_verdict_is_one_of_four_and_no_statement_goes() -> None:
    assert len(rows(PAGE)) >= 62
    assert {re.split(r"\W", row[2])[0] for row in rows(PAGE)} == {"yes", "other", "measured", "GPU"}


def test_what_shows_a_statement_is_there() -> None:
    for row in rows(PAGE):
        shown = re.findall(r"(?:tests|scripts)/[\w/.]+(?:::\w+)?", row[3])
        assert shown, row[0]
        for path, _, name in (each.partition("::") for each in shown):
            assert (ROOT / path).is_file(), path
            if not name:
                continue
            tree = ast.parse((ROOT / path).read_text())
            named = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
            assert name in named, f"{path} has no {name}"
    for page, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", PAGE)):
        assert page.startswith("https:") or (ROOT / "docs" / page).is_file(), page
        assert not heading or heading in headings(ROOT / "docs" / page), heading


def test_options_and_names_of_the_page_are_those_of_the_code() -> None:
    flags = set[str]()
    for name in COMMANDS:
        command: Any = importlib.import_module(f"packprep.cli.{name}").command
        flags |= {flag for each in command.params for flag in each.opts}
    said = " ".join(row[2] for row in rows(PAGE))
    assert {*re.findall(r"(?<![\w-])--[a-z][a-z-]*", said)} <= flags
    code = "".join(path.read_text() for path in MODULES.values())
    known = {*re.findall(r"\w+", code), *(field.name for field in fields(BuildConfig))}
    assert {*re.findall(r"`([A-Za-z_]\w+)[`(=]", said)} <= known


IDS = [[*range(10, 20)], [20, 21, 22], [30], []]
PACKS: list[tuple[str, list[list[int]], dict[str, int]]] = [
    # a piece of a split document goes into a pack with others
    ("", [[*range(10, 18)], [18, 19, 20, 21, 22, 30]], {}),
    ("--stride 2", [[*range(10, 18)], [16, 17, 18, 19, 20, 21, 22, 30]], {}),
    # after 10..17 and 12..19 no piece that holds only tokens of the one before
    ("--stride 6", [[*range(10, 18)], [*range(12, 20)], [20, 21, 22, 30]], {}),
    ("--overflow truncate", [[*range(10, 18)], [20, 21, 22, 30]], {}),
    ("--overflow truncate:left", [[*range(12, 20)], [20, 21, 22, 30]], {}),
    ("--overflow drop", [[20, 21, 22, 30]], {"overflow": 10}),
    ("--max-document-tokens 9", [[20, 21, 22, 30]], {"too_long": 10}),
    ("--min-document-tokens 2", [[*range(10, 18)], [*range(18, 23)]], {"too_short": 1}),
    ("--min-pack-tokens 7", [[*range(10, 18)]], {"small_pack": 6}),
    ("--max-segments 1", [[*range(10, 18)], [18, 19], [20, 21, 22], [30]], {}),
    ("--pad-to-multiple 4", [[*range(10, 18)], [18, 19, 0, 0, 20, 21, 22, 0], [30, 0, 0, 0]], {}),
]


@pytest.mark.parametrize(("options", "packs", "dropped"), PACKS)
def test_options_decide_the_packs_of_four_documents(
    options: str, packs: list[list[int]], dropped: dict[str, int], tmp_path: Path
) -> None:
    """Of ten, three, one and no tokens, in packs of 8."""
    given_rows = [{"ids": ids} for ids in IDS]
    settings = ["--max-length", "8", "--order", "input", *options.split()]
    out = written.build(tmp_path / "out", given_rows, *settings)
    assert datasets.load_from_disk(str(out))["tokens"][:] == packs
    report = json.loads((out / "report.json").read_bytes())
    assert report["tokens"]["dropped"] == dropped
    assert report["documents"]["empty"] == 1
    assert verify(out) == []


def test_the_report_says_which_packs_are_small(tmp_path: Path) -> None:
    """Of 128 tokens at most, and of one."""
    rows = [{"ids": [*range(128)]}, {"ids": [1]}]
    out = written.build(tmp_path / "out", rows, "--max-length", "128")
    page = tmp_path / "page.html"
    cli.main(["report", str(out), "-o", str(page)], standalone_mode=False)
    assert "1 packs have fewer than 2 tokens" in page.read_text("utf-8")


def test_rows_of_ids_are_split_where_documents_end(tmp_path: Path) -> None:
    row = {"ids": [5, 6, 9, 7, 9, 8]}
    out = written.build(tmp_path / "out", [row], "--max-length", "8", split_at="eos:9")
    (pack,) = datasets.load_from_disk(str(out))
    assert (pack["tokens"], pack["cu_seqlens"]) == ([5, 6, 9, 7, 9, 8], [0, 3, 5, 6])


def lengths_of_llama_factory(source: int, target: int, most: int) -> tuple[int, int]:
    """Tokens of prompt and answer that its `infer_seqlen` keeps."""
    room = most
    if target * 2 >= most:
        room = most - source if source * 2 < most else int(most * (target / (source + target)))
    kept = min(room, target)
    return min(max(most - kept, 0), source), kept


@pytest.mark.parametrize("lengths", [(20, 3), (3, 20), (12, 12), (20, 10), (9, 14)])
def test_prompt_and_answer_are_truncated_as_by_llama_factory(
    lengths: tuple[int, int], tmp_path: Path
) -> None:
    source, target = lengths
    ids = [*range(100, 100 + source), *range(200, 200 + target)]
    labels = [each if each >= 200 else -100 for each in ids]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"ids": ids, "labels": labels}))
    command = ["build", str(tmp_path / "rows.jsonl"), "-o", str(tmp_path / "out"), "-q"]
    command += ["--ids", "ids,labels:labels", "--tokenizer", "300", "--max-length", "16"]
    cli.main([*command, "--overflow", "truncate:balanced"], standalone_mode=False)
    (tokens,) = datasets.load_from_disk(str(tmp_path / "out"))["tokens"][:]
    kept, answered = lengths_of_llama_factory(source, target, 16)
    assert tokens == [*range(100, 100 + kept), *range(200, 200 + answered)]


def test_the_stage_of_a_build_is_a_batched_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, whole = list[dict[str, Any]](), datasets.Dataset.map

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(options)
        return whole(self, *arguments, **options)

    monkeypatch.setattr(datasets.Dataset, "map", noted)
    written.build(tmp_path / "out", [{"ids": ids} for ids in IDS], "--num-proc", "1")
    assert [call["batched"] for call in calls] == [True]


def test_the_settings_of_the_page_are_options_of_build(tmp_path: Path) -> None:
    section = (ROOT / "docs/choosing.md").read_text().split("\n## Four settings to start from\n")[1]
    settings = re.findall(r"\| `(--.*)` \|", section)
    assert len(settings) == 4
    documents = [{"ids": [*range(length)]} for length in (9000, 90, 700, 5000, 40)]
    for number, options in enumerate(settings):
        out = written.build(tmp_path / str(number), documents, *shlex.split(options))
        assert verify(out) == []


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=40)


def samplers(lengths: list[int], world: int, **options: Any) -> list[MultipackSampler]:
    return [
        MultipackSampler(lengths, 20, rank=rank, world_size=world, **options)
        for rank in range(world)
    ]


@given(
    lengths=LENGTHS,
    small=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2)),
    drop=st.booleans(),
    more=st.fixed_dictionaries(
        {
            "group_size": st.sampled_from([None, 7]),
            "strategy": st.sampled_from(["stream", "best_fit", "optimal"]),
        }
    ),
)
def test_ranks_of_a_sampler_agree_without_communication(
    lengths: list[int], small: tuple[int, int, int], drop: bool, more: dict[str, Any]
) -> None:
    world, size, epoch = small
    options: dict[str, Any] = {"batch_size": size, **more}
    ranks = samplers(lengths, world, drop_last=drop, **options)
    for sampler in ranks:
        sampler.set_epoch(epoch)
    packs = ranks[0].plan.num_packs
    steps = packs // (world * size) if drop else -(-packs // (world * size))
    batches = [[*sampler] for sampler in ranks]
    assert {len(each) for each in batches} == {steps}
    every = [tuple(pack) for each in batches for batch in each for pack in batch]
    assert len(every) == steps * world * size
    assert all(sum(lengths[number] for number in pack) <= 20 for pack in every)
    tokens = sum(lengths[number] for pack in every for number in pack)
    share = tokens / (len(every) * 20) if every else 1.0
    assert [sampler.efficiency for sampler in ranks] == [share] * world
    times = [every.count(pack) for pack in {*every}]
    if drop:
        assert set(times) <= {1}
    else:
        assert sorted({number for pack in every for number in pack}) == [*range(len(lengths))]
        assert max(times) - min(times) <= 1


def test_documents_begin_and_end_with_tokens_and_texts_are_cut_at_a_pattern(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "tiny")
    texts = ["the cat sat on the mat, the cat sat", "a dog"]
    ids = [tiny_tokenizer().encode(text).ids for text in ("the cat", "a dog")]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert not BuildConfig.continuation_bos
    for continued in (False, True):
        out = tmp_path / f"{continued}"
        config = BuildConfig(
            sources=[str(source)],
            tokenizer=str(tokenizer),
            output=str(out),
            max_length=3,
            truncate_at=" sat",
            continuation_bos=continued,
            strategy="greedy",
            order="input",
            max_segments=1,
        )
        build(config)
        expected, room = list[list[int]](), 3 - continued
        for whole in ([0, *each, 1] for each in ids):
            later = range(3, len(whole), room)
            expected += [whole[:3], *([0] * continued + whole[at : at + room] for at in later)]
        assert datasets.load_from_disk(str(out))["tokens"][:] == expected
