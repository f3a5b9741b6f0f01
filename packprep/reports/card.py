"""The dataset card of an output on the hub: its README.md, from the manifest and report.json."""

import json
from collections.abc import Iterator
from typing import cast

from packprep.inspect.report_file import read_report
from packprep.output.report import shown_names
from packprep.reports.closing import account
from packprep.reports.facts import short_names
from packprep.schemas.columns import STANDARD_COLUMNS
from packprep.schemas.manifest import Manifest, Output, read_manifest
from packprep.schemas.report import Report
from packprep.tokens.reading import refuse_index

MARK = "<!-- Written by packprep; remove this line to keep your own text at the next push. -->"
_SIZES = {1e3: "n<1K", 1e4: "1K<n<10K", 1e5: "10K<n<100K", 1e6: "100K<n<1M", 1e7: "1M<n<10M"}
_SIZES |= {1e8: "10M<n<100M", 1e9: "100M<n<1B"}
_SOURCES = 50  # rows of the table


def dataset_card(output: Output, name: str) -> str:
    """The card of an output as Markdown with the hub's header, and a line feed at the end.

    name: of the dataset on the hub, USER/NAME. Sources appear without the folders they share.
    Raises FormatError if `output` is not a finished build.
    """
    manifest = read_manifest(output)
    refuse_index(output, manifest, "a card is for shards with tokens")
    report = read_report(output, manifest)
    parts = [
        _header(manifest),
        MARK,
        f"# {name.rpartition('/')[2]}",
        _summary(manifest, report),
        _load(name, manifest),
        "\n".join(_account(report)),
        "\n".join(_splits(manifest)),
        "\n".join(_sources(report)),
        "\n".join(_columns(manifest)),
        "\n".join(_made_of(manifest, report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(manifest: Manifest) -> str:
    """The hub's metadata. Its viewer and `load_dataset` read the shards that it names."""
    packs = sum(split.packs for split in manifest.splits.values())
    size = next((words for most, words in _SIZES.items() if packs < most), "1B<n<10B")
    folders = len(manifest.splits) > 1
    lines = ["---", "tags:", "- packprep", "size_categories:", f"- {size}", "configs:"]
    lines += ["- config_name: default", "  data_files:"]
    for split in manifest.splits:
        path = f"{split}/data-*.arrow" if folders else "data-*.arrow"
        lines += [f"  - split: {split}", f"    path: {json.dumps(path)}"]
    return "\n".join([*lines, "---"])


def _summary(manifest: Manifest, report: Report) -> str:
    return (
        f"{report['tokens']['tokens_packed']:,} tokens in {report['packs']:,} packs of up to "
        f"{manifest.max_length:,} tokens, tokenized and packed for training with "
        "packprep. Each row is one pack; `cu_seqlens` says where its documents begin and end."
    )


def _load(name: str, manifest: Manifest) -> str:
    split = "" if len(manifest.splits) == 1 else f', split="{next(iter(manifest.splits))}"'
    return (
        "## Load it\n\n"
        "```python\n"
        "from packprep.loaders import PackedLoader, PackedShards\n\n"
        f'shards = PackedShards("hf://datasets/{name}"{split})\n'
        "for batch in PackedLoader(shards, packs_per_batch=4):\n"
        "    ...\n"
        "```\n\n"
        "Shards are fetched when they are needed, and their digests are checked. To have all files "
        f"first, run `hf download {name} --repo-type dataset --local-dir packed`, then use "
        f'`PackedShards("packed")`. `datasets.load_dataset("{name}")` gives the rows.'
    )


def _account(report: Report) -> Iterator[str]:
    yield from ("## Account", "", "| | |", "|---|---|")
    # The rows of a mix have names of sources with their folders.
    named = ("mix", "phases")
    unnamed = cast("Report", {key: value for key, value in report.items() if key not in named})
    yield from (f"| {_cell(name)} | {_cell(value)} |" for name, value in account(unnamed))


def _splits(manifest: Manifest) -> Iterator[str]:
    yield from ("## Splits", "", "| split | packs | segments | tokens |", "|---|---|---|---|")
    for name, split in manifest.splits.items():
        yield f"| {name} | {split.packs:,} | {split.segments:,} | {split.tokens:,} |"


def _sources(report: Report) -> Iterator[str]:
    sources = report["sources"]
    yield from ("## Sources", "", "| source | documents | tokens |", "|---|---|---|")
    names = shown_names(sources, short_names([source["name"] for source in sources]))
    for name, source in list(zip(names, sources, strict=True))[:_SOURCES]:
        count = source["tokens"]["tokens_in"]
        yield f"| {_cell(name)} | {source['documents']['in']:,} | {count:,} |"
    if len(sources) > _SOURCES:
        yield f"| and {len(sources) - _SOURCES:,} more | | |"


def _columns(manifest: Manifest) -> Iterator[str]:
    yield from ("## Columns", "", "| column | type | |", "|---|---|---|")
    for column in manifest.columns:
        known = STANDARD_COLUMNS.get(column.name)
        meaning = column.meaning or (known.meaning if known else "")
        kind = {"token": "per token", "segment": "per document"}.get(column.kind, "")
        words = ", ".join(part for part in (kind, meaning) if part)
        yield f"| `{column.name}` | {column.dtype} | {_cell(words)} |"


def _made_of(manifest: Manifest, report: Report) -> Iterator[str]:
    inputs = manifest.data["inputs"]
    options = inputs.get("options", {})
    version = manifest.run.get("versions", {}).get("packprep", "")
    rows = {
        "packprep": version,
        "strategy": options.get("strategy", ""),
        "overflow": options.get("overflow", ""),
        "seed": options.get("seed", ""),
        "tokenizer": f"sha256 `{inputs['tokenizer']['sha256']}`, {manifest.vocab_size:,} ids",
        "identity": f"`{manifest.identity}`",
        "digest of the shards": f"`{report['sha256']}`",
    }
    yield from ("## Made from", "", "| | |", "|---|---|")
    yield from (f"| {key} | {value} |" for key, value in rows.items() if value != "")
    yield from (
        "",
        "The same sources and options give the same bytes. `build.yaml` has all options.",
    )


def _cell(text: str) -> str:
    """Text inside a table of Markdown, with nothing that ends the cell or is HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
