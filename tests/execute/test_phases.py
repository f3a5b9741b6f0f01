"""Builds with phases: their shares, replacing the last one, and commands that show them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.config.yaml_file import to_yaml
from packprep.exports.export import export
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import read_manifest
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest, parse_manifest
from packprep.schemas.storage.writing import write_manifest
from tests.helpers.command import run
from tests.helpers.errors import assert_says
from tests.helpers.export_readers import READERS
from tests.helpers.zoo import Zoo


def options_of(zoo: Zoo, name: str, folder: Path) -> dict[str, Any]:
    """Options of a member of the zoo, with three phases of texts or two of trees."""
    made = vars(zoo.config(name)) | {"output": str(folder / "out"), "holdout": 0.0}
    del made["given"]
    if name == "trees":
        made["phases"] = [{"tokens": "70%", "max_length": 64}, {"tokens": "30%", "max_length": 128}]
    return made


def made(options: dict[str, Any], **more: Any) -> Manifest:
    return build(BuildConfig(**options | more))


def in_shares(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    shares = ("60%", "30%", "10%")
    return [phase | {"tokens": share} for phase, share in zip(phases, shares, strict=True)]


def test_every_span_of_packs_has_the_shares_of_its_phase(zoo: Zoo, tmp_path: Path) -> None:
    made(options_of(zoo, "phases", tmp_path), window=10**9)
    shards = PackedShards(tmp_path / "out")
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
            # Two documents: one at the end of the draw, one at the end of the span.
            allowed = (phase.max_length + 2 * longest) / sums.sum(axis=1)
            assert (abs(sums[:, 0] / sums.sum(axis=1) - asked) <= allowed).all()
        first += phase.packs


@pytest.mark.parametrize("kind", ["phases", "trees", "shares"])
def test_earlier_phases_keep_their_bytes_when_the_last_one_changes(
    kind: str, zoo: Zoo, tmp_path: Path
) -> None:
    options = options_of(zoo, "phases" if kind == "shares" else kind, tmp_path)
    if kind == "shares":  # the tokens that a share gave, as numbers
        options["phases"] = in_shares(options["phases"])
    before = made(options)
    if kind == "trees":
        to = Path(options["output"]).with_name("exported")
        export(Path(options["output"]), str(to), "axolotl", unshared=True)
        lengths = [len(pack.tokens) for pack in READERS["axolotl"](to, "train")]
        shorter = next(number for number, length in enumerate(lengths) if length > 64)
        assert 0 < shorter < len(lengths), "rows that share nothing keep the length of their phase"
        assert verify(to).sound
    phases = [
        phase | {"tokens": each.tokens}
        for phase, each in zip(options["phases"], before.phases, strict=True)
    ]
    after = made(options, phases=[*phases[:-1], phases[-1] | {"tokens": 100}], overwrite=True)
    last = len(phases) - 1
    shards = [
        [(entry.phase, entry.sha256) for entry in manifest.files if entry.is_shard]
        for manifest in (before, after)
    ]
    kept = [[each for each in found if int(each[0] or 0) < last] for found in shards]
    assert kept[0] == kept[1] != []
    assert shards[0] != shards[1]
    assert verify(options["output"], level="full").sound


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda data: data["phases"][0]["splits"]["train"].update(packs=1),
            "phase 0 of train has 1 packs of 2994 tokens; its shards add up to",
        ),
        (
            lambda data: data["phases"][2].update(tokens=-1),
            r"phases\[2\].tokens is -1, not a whole number from 0 to",
        ),
        (
            lambda data: data["phases"][2].update(max_length=64),
            "has max_length 128; the longest of its phases is 64",
        ),
        (
            lambda data: next(file for file in data["files"] if "phase" in file).update(phase=2),
            "expected 0 to 2, in rising order",
        ),
    ],
)
def test_a_manifest_whose_phases_do_not_add_up_is_refused(
    zoo: Zoo, change: Callable[[Any], None], sentence: str
) -> None:
    manifest = read_manifest(zoo["phases"])
    data = json.loads(json.dumps(manifest.data))
    change(data)
    content = {"data": data, "run": manifest.run}
    signed = canonical_json(content | {"sha256": digest_of(content)})
    with pytest.raises(FormatError, match=sentence):
        parse_manifest(signed, "manifest.json")


def test_a_pack_that_is_too_long_for_its_phase_is_found(zoo: Zoo, tmp_path: Path) -> None:
    output = zoo.copy("phases", tmp_path)
    manifest = read_manifest(output)
    data = json.loads(json.dumps(manifest.data))
    data["phases"][0]["max_length"] = 16
    write_manifest(output, data, manifest.run)
    assert any("16" in finding.what for finding in verify(output).findings)
    with pytest.raises(FormatError, match="16"):
        PackedShards(output, split="train", verify=True)


def test_stats_the_closing_table_and_the_page_show_every_phase(zoo: Zoo, tmp_path: Path) -> None:
    output, manifest = zoo["phases"], read_manifest(zoo["phases"])
    batches = ("stats", output, "--global-batch-size")
    facts = json.loads(run(*batches, 8, "--json").out)["training"]
    packs = [phase.splits["train"].packs for phase in manifest.phases]
    assert facts["steps_by_phase"] == [packs[0] // 8, packs[1] // 4, packs[2] // 2]
    assert facts["steps_per_epoch"] == sum(facts["steps_by_phase"])
    assert facts["slots_per_step"] == 8 * 32
    places = sum(count * length for count, length in zip(packs, (32, 64, 128), strict=True))
    assert facts["token_utilization"] == facts["tokens"] / places
    shown = run(*batches, 8).out
    for number, phase in enumerate(manifest.phases, 1):
        tokens = sum(counts.tokens for counts in phase.splits.values())
        assert re.search(rf"phase {number} +{tokens:,} tokens in", shown)
    run("report", output, "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("Phase 3 has ") == 1
    assert_says(run(*batches, 6).err, "phase 3", 192, 128)
    assert_says(run("merge", output, output, "-o", tmp_path / "m").err, str(output), "phases")


def test_a_dry_run_predicts_the_tokens_of_every_phase(zoo: Zoo, tmp_path: Path) -> None:
    options = options_of(zoo, "phases", tmp_path)
    options["phases"] = in_shares(options["phases"])
    settings = tmp_path / "build.yaml"
    settings.write_text(to_yaml(BuildConfig(**options)))
    predicted = json.loads(run("build", "-c", settings, "--dry-run", "--json").out)["phases"]
    assert [predicted[f"phase {number}"]["max_length"] for number in (1, 2, 3)] == [32, 64, 128]
    for number, phase in enumerate(made(options).phases, 1):
        asked = pytest.approx(phase.tokens, rel=0.01)
        assert predicted[f"phase {number}"]["tokens"] == asked
    assert_says(run("plan", "-c", settings).err, "weights or phases", "--dry-run")
