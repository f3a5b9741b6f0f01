"""Begins of slices, found from measures alone, are those of reading."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packprep.config.build_config import BuildConfig
from packprep.execute.job import Job
from packprep.execute.places import MeasuredSlice, Places, find_places, is_measured, measure_source
from packprep.output.staging import PLACES
from packprep.sources import units
from packprep.sources.formats import jsonl
from packprep.sources.units import FRONT, Slice, Start, read_slices
from packprep.tokens.store import TokenFile, start_after
from tests.helpers.corpus import resolved, texts, write_jsonl
from tests.helpers.documents import tokenizer
from tests.helpers.files import config


def job_of(tmp_path: Path, limit_of_first: int | None = None, **options: object) -> Job:
    for number in range(3):
        path = tmp_path / f"{number}.jsonl"
        lines = write_jsonl(path, [*texts(50, seed=number), {"text": None}, ""]).read_bytes()
        first, rest = lines.split(b"\n", 1)
        path.write_bytes(b"\xef\xbb\xbf" + first + b"\nnonsense\n" + rest)
    settings: BuildConfig = config(
        sources=[
            {"path": [str(tmp_path / "0.jsonl"), str(tmp_path / "1.jsonl")]}
            | ({"limit": limit_of_first} if limit_of_first else {}),
            str(tmp_path / "2.jsonl"),
        ],
        on_error="skip",
        **options,
    )
    staging = tmp_path / "out.incomplete"
    (staging / "scratch").mkdir(parents=True)
    return Job(
        config=settings, staging=staging, tokenizer=tokenizer(), sources=resolved(settings, staging)
    )


def read(job: Job, start: Start = FRONT) -> list[Slice]:
    return list(read_slices(job.sources, job.plans[0], job.config.reading, job.scratch, start))


def find(job: Job) -> Places:
    for source in range(len(job.sources)):
        measure_source(job, source, job.plans[0][source])
        assert is_measured(job, source)
    return find_places(job)


@pytest.mark.parametrize("limit", [None, 1, 60, 130])
@pytest.mark.parametrize("unit_size", [1, 700, 5_000, 10**9])
def test_measures_are_cut_as_reading_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit_size: int, limit: int | None
) -> None:
    monkeypatch.setattr(units, "SLICE_BYTES", 1_500)
    job = job_of(tmp_path, unit_size=unit_size, limit=limit)
    places, slices = find(job), read(job)
    assert [place.extent for place in places.slices] == [found.extent for found in slices]
    assert [(p.source, p.row) for p in places.slices] == [
        (s.parts[0].source, s.first_rows[0]) for s in slices
    ]
    assert places.units == slices[-1].unit + 1
    assert sum(places.rows) == sum(len(s.table) for s in slices)
    assert find_places(job) == places, "the second process reads what the first has found"
    assert (job.staging / PLACES).exists()


@pytest.mark.parametrize(
    ("limits", "every"),
    [((None,), 64 << 20), ((None,), 700), ((None,), 1), ((None, 130), 700), ((45, 80), 700)],
)
def test_reading_can_begin_with_any_slice_found_or_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[int | None, ...], every: int
) -> None:
    monkeypatch.setattr(units, "SLICE_BYTES", 1_500)
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 600)
    monkeypatch.setattr("packprep.execute.places._BEGINS_EVERY", every)
    limit = limits[-1]
    job = job_of(tmp_path, limits[0], unit_size=4_000, limit=limit)
    places, slices = find(job), read(job)
    rest: Any = {"tokens": 0, "verified": 0, "cut": {}, "left_out": {}, "bytes": 0, "xxh3": ""}
    files = [TokenFile(**vars(part.extent), parts=part.parts, **rest) for part in slices]
    for number in range(len(slices)):
        assert read(job, places.start(number)) == slices[number:]
        start = start_after(files[:number], len(job.sources), job.config.unit_size)
        assert read(job, start) == slices[number:]
    near = [place for place in places.slices if place.byte]
    assert bool(near) == (limit is None and every < 64 << 20)
    assert all(0 < place.near <= place.row for place in near)
    assert find_places(job) == places


ROW = b'{"text": "a"}'


@pytest.mark.parametrize(
    "data", [ROW + b"\n\n" + ROW, b'{\n"text": "a"\n}\n', b"[" + ROW + b",\n" + ROW + b"]"]
)
def test_reading_begins_at_the_front_where_lines_are_no_rows(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.execute.places._BEGINS_EVERY", 1)
    job = job_of(tmp_path, unit_size=1)
    (tmp_path / "0.jsonl").write_bytes(data)
    job = replace(job, sources=resolved(job.config, job.staging))
    places = find(job)
    assert places.rows[0] == data.count(b"text")
    assert not any(place.byte for place in places.slices if place.source == 0)
    assert any(place.byte for place in places.slices)


def test_a_run_begins_in_one_source_and_is_a_quarter_of_a_process_s_part() -> None:
    def places(sources: list[int]) -> Places:
        sizes = {"slice": 0, "first_document": 0, "documents": 1, "text_bytes": 1}
        rest = {"before": 0, "row": 0, **sizes}
        return Places([MeasuredSlice(unit=n, source=s, **rest) for n, s in enumerate(sources)], [])

    assert places([0] * 24).runs(2) == [(first, first + 3) for first in range(0, 24, 3)]
    assert places([0, 0, 0, 1, 2, 2]).runs(1) == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)]
    assert places([0] * 5 + [1] * 7).runs(1) == [(0, 3), (3, 5), (5, 8), (8, 11), (11, 12)]
    assert places([]).runs(3) == []
