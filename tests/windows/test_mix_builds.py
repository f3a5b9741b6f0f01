"""Complete builds of mixes: shares, repeated documents, messages."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.inspect.verify import verify
from packprep.schemas import read_manifest
from packprep.support.errors import PackprepError
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config
from tests.helpers.planted import packs_of, plant
from tests.helpers.zoo import Zoo


def mixed(zoo: Zoo, output: Path, *amounts: dict[str, Any], **options: Any) -> BuildConfig:
    """The config of the mix of the zoo with other amounts of its sources, and other options."""
    made, sources = zoo.config("mix"), zoo.sources("mix")
    if amounts:
        tables = [{"path": path, **amount} for path, amount in zip(sources, amounts, strict=True)]
        options = {"sources": tables, "max_tokens": None, "max_epochs": 1.0} | options
    return replace(made, **{"output": output} | options)


def test_verify_counts_the_copies_of_documents_cut_on_the_left(zoo: Zoo, tmp_path: Path) -> None:
    output, cut = tmp_path / "out", {"overflow": "truncate:left"}
    build(mixed(zoo, output, {"epochs": 2}, {"epochs": 2}, {"epochs": 3}, **cut))
    assert verify(output, level="full").sound
    repeated = read_manifest(output).data["repeated"]["documents"]
    number = next(n for n, pack in enumerate(packs_of(output)) if pack["document_starts"][0] > 0)
    plant(output, lambda packs: packs.append(packs[number]))
    said = "\n".join(str(finding) for finding in verify(output, level="full").findings)
    assert_says(said, "repeated documents, the shards hold", repeated, repeated + 1)


@pytest.mark.parametrize(("limit", "rows"), [(130, 10), (120, 0)])
def test_the_limit_of_a_source_counts_rows_of_all_its_files(
    zoo: Zoo, tmp_path: Path, limit: int, rows: int
) -> None:
    a, _, c = zoo.sources("mix")
    sources = [{"path": a.with_name("[ab].jsonl"), "limit": limit}, {"path": c}]
    plain = {"max_tokens": None, "max_epochs": 1.0}
    built = build(mixed(zoo, tmp_path / "out", **plain, sources=sources))
    assert [source["documents"] for source in built.data["sources"]] == [120, rows, 120]


def test_an_impossible_mix_is_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    rows = {
        "a": ["one two", "three"],
        "b": ["one two"],
        "empty": [""],
        "long": ["one", "word " * 500],
    }
    files = {name: str(write_jsonl(tmp_path / f"{name}.jsonl", rows[name])) for name in rows}
    a, b, empty, missing = files["a"], files["b"], files["empty"], str(tmp_path / "gone.jsonl")
    one, other = {"path": a, "weight": 1}, {"path": b, "weight": 1}
    cases: list[tuple[list[Any], tuple[str, ...]]] = [
        ([one | {"weight": 0}, other], (a, "has weight 0, expected a number above 0")),
        ([one, b], (f"source {b} has no weight and {a} has one",)),
        ([one, {"path": missing, "weight": 1}], (f"no such file: {missing}",)),
        ([one, {"path": empty, "weight": 1}], (f"the source {empty} has no tokens to mix",)),
        ([one, {"path": str(tmp_path / "*.jsonl"), "weight": 1}], (f"{a} is in the mix twice",)),
        ([one | {"text_column": "body"}, other], (f"{a} has no column 'body'; it has text",)),
        ([{"path": a, "split": "train"}, b], (f"source {a}: split 'train' is for hub",)),
        ([{"path": files["long"], "epochs": 1}], (f"{files['long']} row 1 has ",)),
    ]
    common: dict[str, Any] = {"tokenizer": str(save_tokenizer(tmp_path / "t")), "engine": "hf"}
    common |= {"output": str(tmp_path / "out"), "overflow": "error", "max_length": 64}
    for sources, words in cases:
        with refused(PackprepError, *words):
            build(config(sources=sources, **common))
        assert not (tmp_path / "out").exists()
