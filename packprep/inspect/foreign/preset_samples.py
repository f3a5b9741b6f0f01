"""Files of samples that XTuner's preset packs name, where they hold token ids.

A line is a JSON object with `input_ids` and `labels`, as `packprep export --to xtuner` writes them.
Lines with text are tokenized by XTuner when training begins, so nothing is known of them here.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packprep.inspect.foreign.result import ForeignResult
from packprep.schemas.canonical import parse_json
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.findings import Finding
from packprep.support.arrays import Int64

_LARGEST = 2**31
Fault = tuple[str, int | None, str]  # its kind, its token and a sentence


def check_sample_files(
    folder: Path, name: str, paths: list[str], samples: Int64, result: ForeignResult
) -> None:
    """Check every file of samples that is at its path, or in the folder.

    name: of the folder, with a slash, or empty. samples: int64 [segments, 6], see preset_packs.py.
    """
    for number, path in enumerate(paths):
        places = (Path(path), folder / Path(path).name)
        # Path.is_file raises OSError for a name that is longer than file systems allow.
        file = next((file for file in places if os.path.isfile(file)), None)  # noqa: PTH113
        if file is None:
            result.say(f"samples of files that are not here, such as {path}")
            continue
        result.count_file(file)
        chosen = samples[samples[:, 0] == number]
        _check_file(file, name + file.name, chosen[:, 1], chosen[:, 5], result)


def _check_file(path: Path, name: str, chosen: Int64, ends: Int64, result: ForeignResult) -> None:
    """Check the lines of a file. chosen, ends: samples of packs, and their last tokens."""
    lengths: list[int] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                faults: Iterator[Fault] = iter([("row", None, "the line is no JSON object")])
                lengths.append(_LARGEST)
            elif "input_ids" not in row:
                result.say(f"samples of text, such as those of {name}")
                lengths.append(_LARGEST)
                continue
            else:
                faults = _faults(row, result.vocab_size or _LARGEST)
                lengths.append(len(row["input_ids"]) if isinstance(row["input_ids"], list) else 0)
            for kind, token, what in faults:
                finding = Finding(kind=kind, file=name, segment=number, token=token, what=what)
                result.findings.add(finding)
    result.findings.many(
        "sample",
        np.flatnonzero(chosen >= len(lengths)),
        lambda row: Finding(
            kind="sample",
            file=name,
            what=f"a pack has its sample {chosen[row]:,}; expected less than {len(lengths):,}, "
            "the number of lines",
        ),
    )
    known = (chosen >= 0) & (chosen < len(lengths))
    chosen, ends = chosen[known], ends[known]
    have = np.array(lengths, np.int64)[chosen]
    result.findings.many(
        "sample",
        np.flatnonzero(ends > have),
        lambda row: Finding(
            kind="sample",
            file=name,
            segment=int(chosen[row]),
            what=f"a pack has tokens of it up to {ends[row]:,}, and it has {have[row]:,}",
        ),
    )


def _faults(row: dict[str, Any], limit: int) -> Iterator[Fault]:
    """Faults of the ids, the labels and the number of tokens of a line."""
    ids, labels = row["input_ids"], row.get("labels")
    for column, values in (("input_ids", ids), ("labels", labels)):
        if values is None and column == "labels":
            continue
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            yield "row", None, f"{column} is no list of whole numbers"
            return
    if row.get("num_tokens", len(ids)) != len(ids):
        yield "row", None, f"num_tokens is {row['num_tokens']}; expected {len(ids)}, as input_ids"
    for token, id_ in enumerate(ids):
        if not 0 <= id_ < limit:
            yield "token id", token, f"the id is {id_}; expected 0 to {limit - 1}"
    if labels is None:
        return
    if len(labels) != len(ids):
        yield "row", None, f"labels has {len(labels)} values; expected {len(ids)}, as input_ids"
        return
    for token, (label, id_) in enumerate(zip(labels, ids, strict=True)):
        if label not in (NO_LOSS, id_):
            yield "label", token, f"the label is {label}; expected {NO_LOSS} or the id, {id_}"
