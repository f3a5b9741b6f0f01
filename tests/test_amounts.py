"""Mixes, sizes and builds that begin where another ended: which rows are trained, and how often."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from datasets import load_from_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.config.options import BuildConfig
from packprep.look.verify import verify
from packprep.run.build import build
from packprep.support.errors import ConfigError, PackprepError


def write_rows(path: Path, rows: int, first: int) -> str:
    """Rows of 1 to 9 token ids that are all the number of the row, from `first` on."""
    lines = (json.dumps({"input_ids": [first + row] * (row % 9 + 1)}) for row in range(rows))
    path.write_text("\n".join(lines))
    return str(path)


def trained(out: Path, **options: Any) -> tuple[Counter[int], Counter[int], dict[str, Any]]:
    """Build an output of rows of `write_rows`.

    Returns how often each row is in packs of the training split, and of the validation split, and
    the report.
    """
    config = BuildConfig(
        output=str(out), tokenizer=10_000, ids="input_ids", max_length=32, **options
    )
    build(config)
    assert verify(out) == []
    saved = load_from_disk(str(out))
    splits = saved if isinstance(saved, dict) else {"train": saved}
    times = {"train": Counter[int](), "validation": Counter[int]()}
    for split, packs in splits.items():
        for pack in packs:
            bounds = pack["cu_seqlens"][:-1]
            times[split].update(np.array(pack["tokens"])[bounds].tolist())
    report = json.loads((out / "report.json").read_bytes())
    return times["train"], times["validation"], report


@pytest.fixture
def files(tmp_path: Path) -> Sequence[str]:
    """Three sources: rows 0..399, 1000..1099 and 2000..2049."""
    return [
        write_rows(tmp_path / f"{name}.jsonl", rows, first)
        for name, rows, first in (("a", 400, 0), ("b", 100, 1000), ("c", 50, 2000))
    ]


def test_a_mix_has_its_shares_and_counts_what_is_not_drawn(
    files: Sequence[str], tmp_path: Path
) -> None:
    times, _, report = trained(tmp_path / "out", sources=files[:2], weights=[1, 3])
    tokens = [
        sum((row % 1000 % 9 + 1) * n for row, n in times.items() if row // 1000 == s)
        for s in (0, 1)
    ]
    assert [each["trained_tokens"] for each in report["mix"]["sources"]] == tokens
    assert abs(3 * tokens[0] - tokens[1]) <= 3 * 9
    assert {row for row in times if row >= 1000} == {*range(1000, 1100)}
    left = [source["tokens"]["dropped"].get("not_drawn", 0) for source in report["sources"]]
    assert left == [report["sources"][0]["tokens"]["tokens_in"] - tokens[0], 0]
    assert [source["documents"]["in"] for source in report["sources"]] == [400, 100]


def test_a_source_is_used_as_often_as_it_may_and_once_a_window(
    files: Sequence[str], tmp_path: Path
) -> None:
    sources = [
        {"path": files[0], "weight": "50%"},
        {"path": files[2], "weight": "50%", "max_epochs": 2.5},
    ]
    times, _, report = trained(tmp_path / "out", sources=sources)
    assert {times[row] for row in range(2000, 2050)} == {2, 3}
    assert sum(times[row] for row in range(2000, 2050)) == 125
    assert report["mix"]["sources"][1]["passes"] == 2.5
    assert len(report["windows"]) == 3
    assert report["sources"][1]["documents"]["in"] == 50


def test_builds_one_after_another_train_every_row_once_and_no_row_that_was_held_out(
    files: Sequence[str], tmp_path: Path
) -> None:
    first, held, _ = trained(
        tmp_path / "first", sources=files[:2], max_tokens=800, holdout="10%:3", seed=5
    )
    second, also, _ = trained(
        tmp_path / "second",
        sources=[files[2], files[0]],  # b is not in this one
        weights=[1, 3],
        max_tokens=600,
        after=str(tmp_path / "first"),
        seed=1,
    )
    third, rest, report = trained(
        tmp_path / "third", sources=[files[0], files[2], files[1]], after=str(tmp_path / "second")
    )
    rows = {*range(400), *range(1000, 1100), *range(2000, 2050)}
    assert first + second + third + held + also + rest == Counter(rows)
    assert not {*first, *second, *third} & {*held, *also, *rest}
    _, out, _ = trained(tmp_path / "whole", sources=files[:2], holdout="10%:3")
    assert {row for row in held + also + rest if row < 2000} == {*out}
    assert report["splits"]["validation"]["packs"] > 0
    for name in ("first", "second", "third"):
        assert json.loads((tmp_path / name / "manifest.json").read_bytes())["data"]["draw"] == {
            "seed": 5
        }


BUILDS = st.lists(
    st.fixed_dictionaries(
        {"sources": st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)},
        optional={
            "seed": st.integers(1, 5),
            "epoch": st.integers(1, 3),
            "max_tokens": st.integers(300, 900),
            "window": st.just(2000),
            "strategy": st.sampled_from(["stream", "wrapped", "first_fit"]),
            "weights": st.just([3, 1, 2]),
        },
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=6, deadline=None)
@given(builds=BUILDS, seed=st.integers(0, 9))
def test_no_build_trains_a_row_that_one_before_or_after_it_holds_out(
    builds: Sequence[dict[str, Any]], seed: int
) -> None:
    """Each after the one before, with any seed."""
    with TemporaryDirectory() as folder:
        paths = {
            name: write_rows(Path(folder, f"{name}.jsonl"), 90, 1000 * number)
            for number, name in enumerate("abc")
        }
        in_train, held, after = set[int](), set[int](), None
        for number, options in enumerate(builds):
            options["sources"] = [paths[name] for name in options["sources"]]
            if "weights" in options:
                options["weights"] = options["weights"][: len(options["sources"])]
            more = {"holdout": f"20%:{seed}"} if after is None else {"after": after}
            try:
                both = trained(Path(folder, str(number)), **options, **more)[:2]
            except PackprepError as error:
                assert re.search("left|no pack", str(error)), error  # nothing to draw
                continue
            in_train |= {*both[0]}
            held |= {*both[1]}
            after = str(Path(folder, str(number)))
        assert not in_train & held


def test_an_epoch_has_the_same_rows_with_other_neighbours(
    files: Sequence[str], tmp_path: Path
) -> None:
    outs = [tmp_path / name for name in ("zero", "one")]
    times = [trained(out, sources=files, epoch=epoch)[0] for epoch, out in enumerate(outs)]
    assert times[0] == times[1]
    packs = [{tuple(pack) for pack in load_from_disk(str(out))["tokens"]} for out in outs]
    assert len(packs[0] & packs[1]) < len(packs[0]) / 2


def test_what_after_cannot_follow_is_refused(files: Sequence[str], tmp_path: Path) -> None:
    trained(tmp_path / "first", sources=files[:2], max_tokens=800, holdout="10%")
    after = str(tmp_path / "first")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"sources": [{"path": files[:2]}]}, "a.jsonl"),
        ({"sources": files[:1], "on_error": "skip"}, "a.jsonl"),
        ({"sources": files[:1], "holdout": "20%"}, "20%"),
        ({"sources": files[:1], "order": "input"}, "order"),
        ({"sources": files[:1], "limit": 20}, "limit"),
    ]
    for options, name in wrong:
        with pytest.raises(ConfigError, match=name):
            trained(tmp_path / "second", after=after, **options)
    trained(tmp_path / "rest", sources=files[:2], after=after)
    with pytest.raises(ConfigError, match="no tokens left"):
        trained(tmp_path / "more", sources=files[:2], max_tokens=9, after=str(tmp_path / "rest"))
    with pytest.raises(ConfigError, match="nothing is left"):
        trained(tmp_path / "none", sources=files[:2], after=str(tmp_path / "rest"))
    write_rows(Path(files[0]), 30, 0)
    with pytest.raises(ConfigError, match=r"a\.jsonl"):
        trained(tmp_path / "second", sources=files[:1], after=after)
