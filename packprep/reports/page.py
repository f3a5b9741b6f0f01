"""The report of an output as one HTML page.

It has no script, loads nothing, escapes everything, and fits screens of any width.

page.html and page.css hold the layout, charts.py and flows.py the geometry, summary.py the cards
and findings.
"""

import base64
import hashlib
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np
from markupsafe import Markup

from packprep.config.aliases import from_recorded
from packprep.inspect.histograms import WindowPacks, read_batches
from packprep.packing.account import Sums
from packprep.reports.charts import drawing, histograms, pack_bars
from packprep.reports.closing import figure_lines
from packprep.reports.facts import Facts, decimals, lost, not_drawn, percent, short, visible
from packprep.reports.flows import flow
from packprep.reports.summary import cards, findings, lost_and_drawn
from packprep.schemas.columns import WHOLE_ROW
from packprep.schemas.report import Ledger
from packprep.schemas.storage.writing import write_file
from packprep.support.version import __version__

_PACKS = 24  # in the picture
_ROWS = 200  # of the table of sources
_WIDE, _NARROW = 1080, 356  # pixels: a desktop, a phone of 390 less its margins


def write_page(facts: Facts, path: Path) -> Path:
    """Write the page to `path`, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, render(facts).encode())
    return path


def as_data(facts: Facts) -> dict[str, object]:
    """Data of the page as plain JSON values.

    report.json, histograms as [value, count] pairs, and the strategies.
    """
    counts = ("documents", "segments", "documents_per_pack", "fill", "cost")
    histograms = {
        name: np.stack(
            [getattr(facts.measured, name).values, getattr(facts.measured, name).counts], 1
        ).tolist()
        for name in counts
    }
    return {
        "report": facts.report,
        "histograms": histograms,
        "strategies": [
            {"strategy": outcome.strategy, "cut": outcome.cut, **outcome.figures}
            for outcome in facts.outcomes
        ],
    }


def render(facts: Facts) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "n": _thousands,
        "decimals": decimals,
        "short": short,
        "percent": percent,
        "clip": clip,
    }
    files = resources.files("packprep.reports")
    css = files.joinpath("page.css").read_text("utf-8")
    return environment.from_string(files.joinpath("page.html").read_text("utf-8")).render(
        css=Markup(css),
        css_digest=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
        name=visible(
            facts.output.resolve().name if isinstance(facts.output, Path) else facts.output.name
        ),
        version=__version__,
        report=facts.report,
        cards=cards(facts),
        findings=findings(facts),
        undivided=_undivided(facts),
        flows={"wide": flow(facts.links(), _WIDE), "narrow": flow(facts.links(), _NARROW)},
        account=_account(facts.report["tokens"]),
        packs=_packs(facts),
        by_source=len(facts.names) > 1,
        legend=_legend(facts),
        histograms=[(shown, drawing(shown)) for shown in histograms(facts.measured)],
        strategies=facts.strategies(),
        emptiest=max((row.empty for row in facts.strategies()), default=0.0) or 1.0,
        ranks=facts.ranks,
        notes={"grouped": facts.options.get("group_column") is not None},
        sources=_sources(facts),
        undrawn=not_drawn(facts.report["tokens"]) > 0,
        more_sources=max(0, len(facts.names) - _ROWS),
        facts=_facts(facts),
        options=[(key, visible(str(value))) for key, value in from_recorded(facts.options).items()],
    )


def _account(tokens: Ledger) -> dict[str, object]:
    came_out = {
        "= in the packs": tokens["tokens_packed"],
        "+ shared with another row": tokens.get("shared", 0),
    } | {f"+ {what}": n for what, n in lost(tokens).items()}
    came_out |= {"+ not drawn for the mix": not_drawn(tokens)}
    rows = [
        (what, count)
        for what, count in (_put_in(tokens) | came_out).items()
        if count or not what.startswith("+")
    ]
    return {"rows": rows, "sum": Sums.of_ledger(tokens).tokens_put_in}


def _put_in(tokens: Ledger) -> dict[str, int]:
    """The left side of the ledger's equation, in words."""
    return {
        "tokens of the input": tokens["tokens_in"],
        "+ repeated where pieces overlap": tokens["overlap"],
        "+ BOS added to later pieces": tokens["continuation_bos"],
        "+ padding": tokens["filler"],
    }


def _undivided(facts: Facts) -> str:
    """Sentence that replaces the flow chart if it would have a single band; else "".

    That is the case if there is one source and all of its tokens are in the packs.
    """
    links = facts.links()
    if len(facts.names) > 1 or any(link.kind in ("lost", "undrawn") for link in links):
        return ""
    tokens = facts.report["tokens"]
    added = ", ".join(
        f"{count:,} of {what.removeprefix('+ ')}"
        for what, count in _put_in(tokens).items()
        if count and what[0] == "+"
    )
    every = (
        f"All {tokens['tokens_in']:,} tokens of "
        f"{''.join(facts.names) or 'the input'} are in the packs"
    )
    if shared := tokens.get("shared", 0):
        every += f"; {shared:,} of them are shared with another row and not written again"
    return f"{every}, plus {added}." if added else f"{every}."


def _legend(facts: Facts) -> list[dict[str, str]]:
    shown = dict.fromkeys((facts.color(number), facts.label(number)) for number in facts.by_size)
    return [{"css": color, "name": name} for color, name in shown]


def _packs(facts: Facts) -> list[dict[str, object]]:
    """Charts of the first packs of the first split."""
    split = next(iter(facts.manifest.splits))
    pictures: list[dict[str, object]] = []
    for batch in read_batches(facts.output, facts.manifest, split):
        for number in range(min(batch.packs, _PACKS - len(pictures))):
            pictures.append(_picture(batch, number, len(pictures), facts))
        if len(pictures) == _PACKS:
            break
    return pictures


def _picture(batch: WindowPacks, pack: int, number: int, facts: Facts) -> dict[str, object]:
    """Chart of one pack: its segments, each followed by its padding."""
    lengths: list[int] = []
    css: list[str] = []
    titles: list[str] = []

    def draw(tokens: int, style: str, title: str) -> None:
        if tokens:
            lengths.append(tokens)
            css.append(style)
            titles.append(f"{title}: {tokens:,} tokens")

    segments = np.flatnonzero(batch.pack == pack)
    for place, segment in enumerate(segments.tolist()):
        source, title = _segment(batch, segment, facts)
        draw(
            int(batch.real[segment]),
            f"c{place % 2}" if source is None else facts.color(source),
            title,
        )
        draw(int(batch.lengths[segment] - batch.real[segment]), "filler", "padding")
    real = batch.real[segments]
    return {
        "number": number,
        "documents": int((real > 0).sum()),
        "full": float(real.sum() / facts.manifest.max_length),
        "pieces": pack_bars(lengths, css, titles, facts.manifest.max_length),
    }


def _segment(batch: WindowPacks, segment: int, facts: Facts) -> tuple[int | None, str]:
    """Source that colours a segment, or None, and the title of the segment."""
    if batch.document is None or batch.document[segment] < 0:
        return None, "a document"
    document = int(batch.document[segment])
    firsts = [source["first_document"] for source in facts.manifest.data["sources"]]
    source = int(np.searchsorted(firsts, document, side="right")) - 1
    start = 0 if batch.start is None else int(batch.start[segment])
    turn = WHOLE_ROW if batch.turn is None else int(batch.turn[segment])
    part = f" {facts.manifest.part_name} {turn:,}" if turn != WHOLE_ROW else ""
    title = f"{facts.names[source]} row {document - firsts[source]:,}{part}" + (
        f" from token {start:,}" if start else ""
    )
    return (source if len(firsts) > 1 else None), title


def _sources(facts: Facts) -> list[dict[str, object]]:
    total = max(1, facts.report["tokens"]["tokens_in"])
    rows = []
    for name, source in list(zip(facts.names, facts.report["sources"], strict=True))[:_ROWS]:
        tokens = source["tokens"]
        gone, _, share = lost_and_drawn(tokens)
        rows.append(
            {
                "name": clip(name, 60),
                "path": visible(source["name"]),
                "documents": source["documents"]["in"],
                "tokens": tokens["tokens_in"],
                "share": tokens["tokens_in"] / total,
                "packed": tokens["tokens_packed"],
                "lost": gone,
                "lost_share": share,
                "not_drawn": not_drawn(tokens),
            }
        )
    return rows


def _facts(facts: Facts) -> list[tuple[str, str]]:
    manifest, report = facts.manifest, facts.report
    tokenizer = manifest.data["inputs"]["tokenizer"]
    splits = ", ".join(f"{name} {counts.packs:,} packs" for name, counts in manifest.splits.items())
    versions = manifest.run.get("versions", {})
    rows = [
        ("splits", splits),
        ("shards", f"{report['shards']:,}, {report['bytes']:,} bytes"),
        *figure_lines(report),
        ("tokenizer", f"{manifest.vocab_size:,} tokens, sha256 {tokenizer['sha256'][:16]}…"),
        (
            "built in",
            f"{report['seconds']['total']:.1f} s, {report['tokens_per_second']:,.0f} tokens/s",
        ),
        ("peak memory", f"{report['peak_memory_bytes'] / 1e6:,.0f} MB"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("digest", report["sha256"]),
        ("identity", manifest.identity),
    ]
    return [(what, visible(value)) for what, value in rows if value]


def clip(text: str, most: int) -> str:
    """The end of a long name, where names differ: "abcdef" in 4 signs is "…def"."""
    return text if len(text) <= most else "…" + text[-(most - 1) :]


def _thousands(count: int) -> str:
    return f"{count:,}"
