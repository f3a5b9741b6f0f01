"""Run a set-up or a bad input by the command line of an edition, and take down the result.

The shards are read by pyarrow alone: whatever their files and types, the record has one digest for
each column, of the lengths of the packs and then all values, as little-endian int64, or float64.
"""

import contextlib
import hashlib
import importlib
import io
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import yaml

from . import spellings

Result = dict[str, Any]
MAIN = {"first": "packprep.cli.main", "second": "packprep.next.cli.main"}
LOADERS = {"first": "packprep.loaders", "second": "packprep.next.loaders"}
"""Modules of each edition: `main` of the command line, and `PackedShards`, which reads plans."""
COLUMNS = {
    "input_ids": "tokens",
    "cu_seqlens": "boundaries",
    "seq_lengths": "boundaries",
}
"""Names of the record for columns of shards; all others are their own. `hf` stores lengths."""
FIGURES = (
    *("packs", "segments", "tokens", "documents", "splits", "utilization", "bound", "gap"),
    *("documents_per_pack", "bos_rate", "eos_rate", "loss_tokens", "loss_utilization"),
    *("tokens_lost", "padding_of_batch", "straggler", "left_out", "turns"),
)
"""Numbers of report.json that both editions have; those of the machine and of windows are not."""
OF_A_SOURCE = ("documents", "tokens", "segments")
PATH = r"(?<![\w./])(?:in|own|out|store)(?:/[\w*.-]+)+"
ERRORS = ("ConfigError", "InputError", "StoppedError", "FormatError")


@dataclass(frozen=True)
class Case:
    """Commands of one set-up, as fields of BuildConfig, and how their output is judged.

    steps: (command, options), or arguments that are the same in both editions. Sources are
    `in/NAME`, and `own/NAME` of `files`.
    kind: "values" for all columns and figures, "laws" where the editions draw other documents,
    "epoch" for the packs of the last epoch without figures, "error" for what is refused.
    files: by name, written into `own`. stdin: file for the last command. damage: see `_damage`,
    before the last command. needs: a library that has to be installed.
    """

    name: str
    steps: tuple[tuple[str, Any], ...]
    kind: str = "values"
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: str | None = None
    damage: Mapping[str, int] = field(default_factory=dict)
    needs: str = ""

    def commands(self, edition: str) -> list[dict[str, Any]]:
        """The commands of this edition, as the record writes them."""
        made: list[dict[str, Any]] = []
        for command, options in self.steps:
            if isinstance(options, tuple):
                made.append({"command": command, "arguments": [*options]})
            elif edition == "first":
                made.append({"command": command, "options": dict(options)})
            elif options.get("part") != "merge":  # the last part signs there
                made.append(spellings.second(command, options))
        return made


def run(case: Case, inputs: Path, folder: Path, edition: str = "first") -> Result:
    """The result of a case in a new folder. inputs: see inputs.py."""
    folder.mkdir()
    (folder / "in").symlink_to(inputs.resolve())
    (folder / "own").mkdir()
    for name, content in case.files.items():
        path = folder / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    outcome = Outcome(0, "", "")
    with contextlib.chdir(folder):
        commands = case.commands(edition)
        for number, each in enumerate(commands):
            last = number == len(commands) - 1
            if last:
                _damage(case.damage)
            stdin = Path(case.stdin).read_bytes() if case.stdin and last else b""
            outcome = _command(each, edition, stdin)
            if outcome.code and (case.kind != "error" or not last):
                raise AssertionError(f"{case.name}: exit {outcome.code}: {outcome.error}")
        if case.kind == "error":
            return refusal(outcome)
        return {"exit": outcome.code, **_judged(case, edition)}


def _damage(places: Mapping[str, int]) -> None:
    """Invert one byte of each file; a name may be a pattern, a negative place is from the end."""
    for pattern, place in places.items():
        for path in sorted(Path().glob(pattern)):
            data = bytearray(path.read_bytes())
            data[place] ^= 0xFF
            path.write_bytes(data)


@dataclass(frozen=True)
class Outcome:
    code: int
    kind: str
    error: str


def _command(command: Mapping[str, Any], edition: str, stdin: bytes) -> Outcome:
    """Run a command in this process, in the folder of the case."""
    arguments = [command["command"], *command.get("arguments", ())]
    options = command["options"] if edition == "first" and "options" in command else None
    keys = command.get("yaml") if options is None else options
    if keys:
        Path(f"{edition}.yaml").write_text(yaml.safe_dump(plain(keys)))
    if options is not None:
        flags = {"dry_run": "--dry-run", "quiet": "-q"}
        arguments += [flag for name, flag in flags.items() if options.get(name)]
        sources = options.get("sources", ())
        others = {name: value for name, value in options.items() if name not in flags}
        if sources == ["-"]:
            del others["sources"]
            arguments.append("-")
        Path("first.yaml").write_text(yaml.safe_dump(plain(others)))
        arguments += ["-c", "first.yaml"]
    out, err = io.StringIO(), io.StringIO()
    main = importlib.import_module(MAIN[edition]).main
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["packprep", *arguments]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        mock.patch.dict(os.environ),
    ):
        try:
            main()
        except SystemExit as stopped:
            # `main` ends while it handles the error that it prints.
            code = stopped.code if isinstance(stopped.code, int) else 1
            return Outcome(code, _class_of(stopped.__context__), err.getvalue() or out.getvalue())
    return Outcome(0, "", "")


def plain(value: Any) -> Any:
    """A value with tuples as lists, as JSON and YAML have them."""
    return json.loads(json.dumps(value))


def _class_of(error: BaseException | None) -> str:
    """The class that both editions have; errors of click are of options."""
    names = [] if error is None else [each.__name__ for each in type(error).__mro__]
    if "ClickException" in names:
        return "ConfigError"
    return next((name for name in names if name in ERRORS), names[0] if names else "")


def refusal(outcome: Outcome) -> Result:
    """The class of an error, and the files, rows, names and figures in its sentence.

    names: what it quotes, such as columns. Examples after "such as" are advice. A command that ends
    with 1 has no error, but findings: the code says it all.
    """
    if not outcome.kind:
        return {"exit": outcome.code}
    sentence = re.sub(r"such as [^;]*", "", outcome.error)
    rest = re.sub(PATH, "", sentence)
    rows = re.findall(r"\brow ([\d,]*\d)", rest)
    figures = re.findall(
        r"(?<![\w.,-])-?\d[\d,]*(?:\.\d+)?(?!\w)", re.sub(r"\brow [\d,]*", "", rest)
    )
    return {
        "exit": outcome.code,
        "class": outcome.kind,
        "files": sorted(set(re.findall(PATH, sentence))),
        "rows": sorted({int(row.replace(",", "")) for row in rows}),
        "names": sorted(set(re.findall(r"'([A-Za-z_]\w*)'", rest))),
        "figures": sorted({figure.replace(",", "").rstrip(".") for figure in figures}),
    }


def _judged(case: Case, edition: str) -> Result:
    if any(options.get("dry_run") for _, options in case.steps if isinstance(options, Mapping)):
        return {"output": Path("out").exists()}
    report = json.loads(Path("out/report.json").read_bytes())
    epoch = None
    if case.kind == "epoch" and edition == "first":
        epoch = max(options.get("epochs", 1) for _, options in case.steps) - 1
    packs = {split: read_columns(Path("out"), split, edition, epoch) for split in report["splits"]}
    if case.kind == "laws":
        return {"laws": laws(case, packs, report), "report": _totals(report)}
    splits = {
        split: {
            "packs": len(columns["tokens"][0]),
            "columns": {name: digest(*column) for name, column in sorted(columns.items())},
        }
        for split, columns in packs.items()
    }
    return {"splits": splits} | ({} if case.kind == "epoch" else {"report": figures(report)})


Column = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]  # lengths of packs, values


def digest(lengths: Any, values: Any) -> str:
    """sha256 of the lengths and the values of a column."""
    dtype = "<f8" if values.dtype.kind == "f" else "<i8"
    return hashlib.sha256(
        lengths.astype("<i8").tobytes() + values.astype(dtype).tobytes()
    ).hexdigest()


def read_columns(
    out: Path, split: str, edition: str, epoch: int | None = None
) -> dict[str, Column]:
    """The columns of a split, by their names in the record, over all packs in order.

    A plan has no tokens: its packs are those that the loaders of the edition give. epoch: only the
    files of this one, of an output of the first edition.
    """
    folder = out / split if (out / split).is_dir() else out
    state = json.loads((folder / "state.json").read_bytes())
    names = [entry["filename"] for entry in state["_data_files"]]
    if epoch is not None:
        manifest = json.loads((out / "manifest.json").read_bytes())
        epochs = {
            Path(entry["path"]).name: entry.get("epoch", 0) for entry in manifest["data"]["files"]
        }
        names = [name for name in names if epochs[name] == epoch]
    tables = []
    for name in names:
        with pa.memory_map(str(folder / name)) as file:
            tables.append(pa.ipc.open_stream(file).read_all())
    table = pa.concat_tables(tables)
    if {"tokens", "input_ids"}.isdisjoint(table.column_names):
        return _read_plan(out, split, edition)
    columns = {}
    for name in table.column_names:
        lists: Any = table[name].combine_chunks()
        lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
        values = lists.flatten().to_numpy(zero_copy_only=False)
        if name == "seq_lengths":
            lengths, values = _boundaries(lengths, values)
        columns[COLUMNS.get(name, name)] = (lengths, values)
    return columns


def _boundaries(lengths: Any, values: Any) -> Column:
    """Lengths of segments as their ends, from 0."""
    parts = np.split(values.astype(np.int64), np.cumsum(lengths)[:-1])
    ends = [np.concatenate([[0], np.cumsum(part)]) for part in parts]
    return lengths + 1, np.concatenate(ends)


def _read_plan(out: Path, split: str, edition: str) -> dict[str, Column]:
    shards = importlib.import_module(LOADERS[edition]).PackedShards(out, split=split)
    packs = [
        {name: values.copy() for name, values in getattr(pack, "columns", pack).items()}
        for pack in shards
    ]
    return {
        COLUMNS.get(name, name): (
            np.array([len(pack[name]) for pack in packs]),
            np.concatenate([pack[name] for pack in packs]),
        )
        for name in packs[0]
    }


def figures(report: Mapping[str, Any]) -> Result:
    """The numbers of report.json that stay, and those of each source if there are several."""
    kept = {name: report[name] for name in FIGURES if name in report}
    if len(report["sources"]) > 1:
        kept["sources"] = [
            {"name": Path(source["name"]).name} | {name: source[name] for name in OF_A_SOURCE}
            for source in report["sources"]
        ]
    rounded: Result = json.loads(json.dumps(kept), parse_float=lambda text: round(float(text), 9))
    return rounded


def _totals(report: Mapping[str, Any]) -> Result:
    return {"documents": report["documents"]["in"], "sources": len(report["sources"])}


def laws(
    case: Case, packs: Mapping[str, Mapping[str, Column]], report: Mapping[str, Any]
) -> Result:
    """Which laws an output keeps whose documents each edition draws by itself."""
    _, options = case.steps[-1]
    tokens, splits = report["tokens"], report["splits"]
    lost = tokens["truncated"] + sum(tokens["dropped"].values())
    came = sum(tokens[name] for name in ("tokens_in", "overlap", "continuation_bos", "filler"))
    written = sum(len(columns["tokens"][1]) for columns in packs.values())
    counted = _times(packs)
    listed = options.get("sources", case.steps[0][1].get("sources", ()))
    weights = [float(weight) for weight in options.get("weights", ())] or [
        source["weight"] for source in listed if isinstance(source, Mapping) and "weight" in source
    ]
    kept = {
        "every token is counted": came == tokens["tokens_packed"] + lost,
        "the shards hold what is packed": written
        == tokens["tokens_packed"]
        == sum(split["tokens"] for split in splits.values()),
        "no pack is too long": all(
            columns["tokens"][0].max(initial=0) <= report["max_length"]
            for columns in packs.values()
        ),
        "no document is in two splits": _apart(packs),
    }
    if weights:
        trained = np.array([source["trained_tokens"] for source in report["mix"]["sources"]])
        apart = np.abs(trained - np.array(weights) / sum(weights) * trained.sum())
        longest = _longest(packs)
        kept["shares are exact to a document"] = bool(apart.max() <= longest)
        most = max(
            float(source.get("max_epochs", 1)) if isinstance(source, Mapping) else 1
            for source in [*listed, {"max_epochs": options.get("max_epochs", 1)}]
        )
        kept["no source is used more often than it may"] = max(counted.values()) <= math.ceil(most)
        if "max_tokens" in options:
            left = splits["train"]["tokens"] - options["max_tokens"]
            kept["the size is that asked for, to a document a source"] = (
                abs(left) <= len(trained) * longest
            )
    else:
        kept["every document is there once"] = len(counted) == (
            report["documents"]["in"]
            - report["documents"]["empty"]
            - sum(report["documents"]["skipped"].values())
            - sum(report["documents"]["dropped"].values())
        )
    return kept


def _times(packs: Mapping[str, Mapping[str, Column]]) -> Counter[int]:
    """How often each document is in the packs: its pieces that begin at 0."""
    counted: Counter[int] = Counter()
    for columns in packs.values():
        ids, starts = columns["document_ids"][1], columns["document_starts"][1]
        counted.update(ids[(starts == 0) & (ids >= 0)].tolist())
    return counted


def _longest(packs: Mapping[str, Mapping[str, Column]]) -> int:
    """Tokens of the longest document: the last end of its pieces."""
    ends = []
    for columns in packs.values():
        lengths, bounds = columns["boundaries"]
        counts = np.concatenate(
            [np.diff(part) for part in np.split(bounds, np.cumsum(lengths)[:-1])]
        )
        ends.append(columns["document_starts"][1] + counts)
    return int(np.concatenate(ends).max())


def _apart(packs: Mapping[str, Mapping[str, Column]]) -> bool:
    seen: set[int] = set()
    for columns in packs.values():
        ids = {*columns["document_ids"][1].tolist()} - {-1}
        if seen & ids:
            return False
        seen |= ids
    return True


def differences(recorded: Any, result: Any, place: str = "") -> Iterator[str]:
    """Places where a result differs from the record: "train tokens", "report packs: 3, not 4"."""
    if isinstance(recorded, Mapping) and isinstance(result, Mapping):
        for name in {**recorded, **result}:
            where = f"{place} {name}".strip() if name not in ("splits", "columns") else place
            yield from differences(recorded.get(name), result.get(name), where)
    elif recorded != result:
        short = isinstance(recorded, str) and len(recorded) == 64
        yield place if short else f"{place}: {_brief(result)}, recorded {_brief(recorded)}"


def unsaid(recorded: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[str]:
    """What a refusal of another edition has in common with the record: it may name more."""
    yield from differences(
        {name: recorded.get(name) for name in ("exit", "class")},
        {name: result.get(name) for name in ("exit", "class")},
    )
    for name in ("files", "rows", "names", "figures"):
        named = [_of_any_edition(each) for each in result.get(name, ())]
        wanted = [_of_any_edition(each) for each in recorded.get(name, ())]
        if missing := [each for each in wanted if each not in named]:
            yield f"{name}: not named: {missing}"


def _of_any_edition(named: Any) -> Any:
    """A file of a token store, whose name is of one edition, by a name of both."""
    if not isinstance(named, str):
        return named
    return re.sub(r"[0-9a-f]{32,64}", "KEY", named).replace("KEY/unit-", "KEY/tokens-")


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


def lines_of(cases: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Cases as JSON, in few lines each, so that a diff names what changed."""
    for each in cases:
        yield "{" + ",\n ".join(f"{json.dumps(name)}: {_line(each[name])}" for name in each) + "}"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def written(head: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> str:
    """A file of the record."""
    return f'{{"head": {_line(head)},\n"cases": [\n' + ",\n".join(lines_of(cases)) + "\n]}\n"
