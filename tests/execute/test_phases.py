"""Builds with phases: their output, resuming one, and replacing the last phase."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.config.yaml_file import to_yaml
from packprep.execute import stages, window_files
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.output import directory as outputs
from packprep.schemas import check_ledger, read_manifest
from packprep.schemas.canonical import digest_of
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest, parse_manifest
from packprep.schemas.storage.writing import write_manifest
from tests.helpers.command import run
from tests.helpers.corpus import build_options, disk_fails, texts

SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """Options of three phases of packs of 32, 64 and 128 tokens, in several windows and shards."""
    files = {name: texts(150, seed=ord(name[0])) for name in ("a.jsonl", "b.jsonl")}
    sizes = {"unit_size": 3_000, "window": 8_000, "shard_size": 8_000}
    phases = [
        {"tokens": 1500, "weights": [3, 1], "max_length": 32},
        {"tokens": 800, "weights": [1, 1], "max_length": 64},
        {"tokens": 500, "weights": [1, 3], "max_length": 128},
    ]
    return build_options(
        tmp_path,
        files,
        **sizes,
        sources=tuple(str(tmp_path / name) for name in files),
        phases=phases,
        engine="hf",
        num_proc=1,
        holdout=0.1,
        keep_tokens=str(tmp_path / "store"),
    )


def made(corpus: dict[str, Any], **options: Any) -> Manifest:
    return build(BuildConfig(**corpus | options))


def shards_of(manifest: Manifest, phases: int) -> list[str]:
    """Digests of the shards of the first phases."""
    return [
        entry.sha256
        for entry in manifest.files
        if entry.is_shard and int(entry.phase or 0) < phases
    ]


def test_the_manifest_and_the_report_describe_every_phase(
    corpus: dict[str, Any],
) -> None:
    manifest = made(corpus)
    assert verify(corpus["output"], level="full").sound
    assert [phase.max_length for phase in manifest.phases] == [32, 64, 128]
    assert [phase.tokens for phase in manifest.phases] == [1500, 800, 500]
    assert manifest.max_length == 128
    for split, counts in manifest.splits.items():
        for key in ("packs", "segments", "tokens"):
            parts = [getattr(phase.splits[split], key) for phase in manifest.phases]
            assert sum(parts) == getattr(counts, key)
    report = json.loads((Path(corpus["output"]) / "report.json").read_text())
    for name, content in (
        ("report", report),
        ("manifest", json.loads((Path(corpus["output"]) / "manifest.json").read_text())),
    ):
        jsonschema.validate(content, json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
    for phase in report["phases"]:
        check_ledger(phase["tokens"])
    not_drawn = report["tokens"]["dropped"]["not_drawn"]
    for key in ("tokens_in", "tokens_packed"):
        parts = sum(phase["tokens"][key] for phase in report["phases"])
        assert report["tokens"][key] == parts + not_drawn * (key == "tokens_in")
    places = sum(phase["packs"] * phase["max_length"] for phase in report["phases"])
    assert report["utilization"] == report["tokens"]["tokens_packed"] / places
    for phase, asked in zip(
        report["phases"], [[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]], strict=True
    ):
        assert [source["asked_share"] for source in phase["sources"]] == asked


def test_every_span_of_packs_has_the_shares_of_its_phase(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    made(corpus, window=10**9, holdout=0.0, max_tokens=None)
    shards = PackedShards(corpus["output"])
    second = shards.manifest.data["sources"][1]["first_document"]
    first = 0
    for phase, asked in zip(shards.phases, [0.75, 0.5, 0.25], strict=True):
        tokens = np.zeros((phase.packs, 2), np.int64)
        longest = 0
        for number in range(phase.packs):
            for segment in shards[first + number].segments():
                tokens[number, int(int(segment.document_id or 0) >= second)] += len(segment.tokens)
                longest = max(longest, len(segment.tokens))
        ends = np.vstack([np.zeros((1, 2), np.int64), np.cumsum(tokens, axis=0)])
        for span in (phase.packs // 3, phase.packs // 2, phase.packs):
            sums = ends[span:] - ends[:-span]
            shares = sums[:, 0] / sums.sum(axis=1)
            # Two documents: one at the end of the draw, one at the end of the span.
            allowed = (phase.max_length + 2 * longest) / sums.sum(axis=1)
            assert (abs(shares - asked) <= allowed).all()
        first += phase.packs


STEPS: list[tuple[Any, str, int]] = [
    (stages, "Windows", 0),
    (window_files, "write_shard", 2),
    (window_files, "plan_window", 5),
    (stages, "name_shards", 0),
    (stages, "sign", 0),
    (outputs, "publish", 0),
]


@pytest.mark.parametrize(
    ("place", "name", "calls"), STEPS, ids=[f"{name}-{calls}" for _, name, calls in STEPS]
)
def test_a_build_with_phases_that_was_stopped_resumes_to_the_same_bytes(
    corpus: dict[str, Any],
    tmp_path: Path,
    place: Any,
    name: str,
    calls: int,
) -> None:
    undisturbed = made(corpus, output=str(tmp_path / "undisturbed"))
    with disk_fails(place, name, calls):
        made(corpus)
    assert not Path(corpus["output"]).exists()
    assert made(corpus).data == undisturbed.data


def with_last(corpus: dict[str, Any], **last: Any) -> dict[str, Any]:
    return corpus | {"phases": [*corpus["phases"][:2], corpus["phases"][2] | last]}


@pytest.mark.parametrize("shares", [False, True])
def test_earlier_phases_keep_their_bytes_when_the_last_one_changes(
    corpus: dict[str, Any], shares: bool
) -> None:
    if shares:  # the tokens that a share gave, as numbers
        asked = [
            phase | {"tokens": f"{share}%"}
            for phase, share in zip(corpus["phases"], (60, 30, 10), strict=True)
        ]
        before = made(corpus, phases=asked)
        corpus["phases"] = [
            phase | {"tokens": each.tokens}
            for phase, each in zip(asked, before.phases, strict=True)
        ]
    else:
        before = made(corpus)
    changed = with_last(corpus, tokens=100, weights=[1, 1], max_length=256)
    after = made(changed, overwrite=True)
    assert shards_of(after, 2) == shards_of(before, 2)
    assert shards_of(after, 3) != shards_of(before, 3)
    assert verify(corpus["output"]).sound


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda data: data["phases"][0]["splits"]["train"].update(packs=1),
            "phase 0 has 1 packs of train; its shards add up to",
        ),
        (
            lambda data: data["phases"][2].update(max_length=64),
            "has max_length 128; the longest of its phases is 64",
        ),
        (
            lambda data: next(file for file in data["files"] if "phase" in file).update(phase=2),
            "expected 2 to 2, in rising order",
        ),
    ],
)
def test_a_manifest_whose_phases_do_not_add_up_is_refused(
    corpus: dict[str, Any], change: Any, sentence: str
) -> None:
    manifest = made(corpus)
    data = json.loads(json.dumps(manifest.data))
    change(data)
    content = {"data": data, "run": manifest.run}
    from packprep.schemas.canonical import canonical_json

    signed = canonical_json(content | {"sha256": digest_of(content)})
    with pytest.raises(FormatError, match=sentence):
        parse_manifest(signed, "manifest.json")


def test_verify_finds_a_pack_that_is_too_long_for_its_phase(corpus: dict[str, Any]) -> None:
    manifest = made(corpus)
    data = json.loads(json.dumps(manifest.data))
    data["phases"][0]["max_length"] = 16
    write_manifest(Path(corpus["output"]), data, manifest.run)
    findings = verify(corpus["output"]).findings
    assert any("16" in finding.what for finding in findings)
    with pytest.raises(FormatError, match="16"):
        PackedShards(corpus["output"], split="train", verify=True)


def test_an_output_with_phases_can_be_renamed_but_not_merged(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    before = made(corpus)
    assert run("merge", corpus["output"], corpus["output"], "-o", tmp_path / "m").err == (
        f"packprep: {corpus['output']} has phases, and the packs of a merge have no order of "
        "phases; build its sources together instead\n"
    )
    assert (
        run("merge", corpus["output"], "-o", corpus["output"], "--names", "hf", "--overwrite").code
        == 0
    )
    assert verify(corpus["output"]).sound
    assert read_manifest(corpus["output"]).phases == before.phases


def test_stats_the_closing_table_and_the_page_show_every_phase(corpus: dict[str, Any]) -> None:
    manifest = made(corpus)
    facts = json.loads(run("stats", corpus["output"], "--global-batch-size", 8, "--json").out)[
        "training"
    ]
    packs = [phase.splits["train"].packs for phase in manifest.phases]
    assert facts["steps_by_phase"] == [packs[0] // 8, packs[1] // 4, packs[2] // 2]
    assert facts["steps_per_epoch"] == sum(facts["steps_by_phase"])
    assert facts["slots_per_step"] == 8 * 32
    places = sum(count * length for count, length in zip(packs, (32, 64, 128), strict=True))
    assert facts["token_utilization"] == facts["tokens"] / places
    shown = run("stats", corpus["output"], "--global-batch-size", 8).out
    for number, phase in enumerate(manifest.phases, 1):
        tokens = sum(counts.tokens for counts in phase.splits.values())
        assert re.search(rf"phase {number} +{tokens:,} tokens in", shown)
    run("report", corpus["output"], "-o", Path(corpus["output"]).parent / "page.html")
    page = (Path(corpus["output"]).parent / "page.html").read_text()
    assert page.count("Phase 3 has ") == 1
    refused = run("stats", corpus["output"], "--global-batch-size", 6)
    assert refused.err == (
        "packprep: a batch of 192 tokens has no whole number of packs of 128 on each of 1 ranks in "
        "phase 3; choose another global batch size\n"
    )


def test_a_dry_run_predicts_the_tokens_of_every_phase(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    shares = [
        phase | {"tokens": f"{share}%"}
        for phase, share in zip(corpus["phases"], (60, 30, 10), strict=True)
    ]
    options = corpus | {"phases": shares, "holdout": 0.0}
    settings = tmp_path / "build.yaml"
    settings.write_text(to_yaml(BuildConfig(**options)))
    predicted = json.loads(run("build", "-c", settings, "--dry-run", "--json").out)["phases"]
    manifest = made(options)
    assert [predicted[f"phase {number}"]["max_length"] for number in (1, 2, 3)] == [32, 64, 128]
    for number, phase in enumerate(manifest.phases, 1):
        asked = pytest.approx(phase.tokens, rel=0.01)
        assert predicted[f"phase {number}"]["tokens"] == asked
    refused = run("plan", "-c", settings)
    assert refused.err == (
        "packprep: plan takes sources without weights or phases; packprep build --dry-run predicts "
        "those\n"
    )
