"""The report of an output as one HTML page.

No script, nothing loaded, everything escaped, for screens of any width.

page.html and page.css beside this file are what it looks like, charts.py says where things stand;
here are the words.
"""

import base64
import hashlib
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from packprep.inspect.histograms import WindowPacks, read_batches
from packprep.packing.account import Sums
from packprep.reports.charts import drawing, flow, pack_bars
from packprep.reports.facts import Facts, lost, not_drawn, percent, short, visible
from packprep.schemas.report import Ledger
from packprep.schemas.storage.writing import write_file
from packprep.support.version import __version__

_PACKS = 24  # in the picture
_MUCH_LOST = 0.01  # share of the tokens
_ROWS = 200  # of the table of sources
_WIDE, _NARROW = 1080, 356  # pixels: a desktop, a phone of 390 less its margins


def write_page(facts: Facts, path: Path) -> Path:
    """Write the page at `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, render(facts).encode())
    return path


def as_data(facts: Facts) -> dict[str, Any]:
    """Data of the page for machines.

    Histograms as [value, count] pairs, strategies, and report.json itself.
    """
    counts = ("documents", "segments", "documents_per_pack", "fill", "cost")
    figures = ("strategy", "packs", "bound", "utilization", "bias", "straggler", "cut", "gap")
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
            {name: getattr(outcome, name) for name in figures} for outcome in facts.outcomes
        ],
    }


def render(facts: Facts) -> str:
    """The page."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "n": _thousands,
        "decimals": _decimals,
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
        cards=_cards(facts),
        findings=_findings(facts),
        undivided=_undivided(facts),
        flows={"wide": flow(facts.links(), _WIDE), "narrow": flow(facts.links(), _NARROW)},
        account=_account(facts.report["tokens"]),
        packs=_packs(facts),
        by_source=len(facts.names) > 1,
        legend=_legend(facts),
        histograms=[(shown, drawing(shown)) for shown in facts.histograms()],
        strategies=facts.strategies(),
        emptiest=max((row.empty for row in facts.strategies()), default=0.0) or 1.0,
        ranks=facts.ranks,
        notes={"grouped": facts.options.get("group_column") is not None},
        sources=_sources(facts),
        undrawn=not_drawn(facts.report["tokens"]) > 0,
        more_sources=max(0, len(facts.names) - _ROWS),
        facts=_facts(facts),
        options=[(key, visible(str(value))) for key, value in facts.options.items()],
    )


def _account(tokens: Ledger) -> dict[str, Any]:
    put_in = {
        "tokens of the input": tokens["tokens_in"],
        "+ repeated where pieces overlap": tokens["overlap"],
        "+ BOS of later pieces": tokens["continuation_bos"],
        "+ padding": tokens["filler"],
    }
    came_out = {"= in the packs": tokens["tokens_packed"]} | {
        f"+ {what}": n for what, n in lost(tokens).items()
    }
    came_out |= {"+ not drawn for the mix": not_drawn(tokens)}
    rows = [
        (what, count)
        for what, count in (put_in | came_out).items()
        if count or not what.startswith("+")
    ]
    return {"rows": rows, "sum": Sums.of_ledger(tokens).tokens_put_in}


def _undivided(facts: Facts) -> str:
    """A sentence in place of a picture of one band, of one source that is all in the packs.

    Else nothing.
    """
    links = facts.links()
    if len(facts.names) > 1 or any(link.kind in ("lost", "undrawn") for link in links):
        return ""
    rows = [
        (what.removeprefix("+ "), count)
        for what, count in _account(facts.report["tokens"])["rows"]
        if what[0] == "+"
    ]
    beside = ", ".join(f"{count:,} of {what}" for what, count in rows)
    every = (
        f"All {facts.report['tokens']['tokens_in']:,} tokens of "
        f"{''.join(facts.names) or 'the input'} are in the packs"
    )
    return f"{every}, beside {beside}." if beside else f"{every}."


def _cards(facts: Facts) -> list[dict[str, str]]:
    report, documents = facts.report, facts.report["documents"]
    gone, wanted, share = _gone(report["tokens"])
    spread = report["documents_per_pack"]
    left_out = sum(documents["dropped"].values()) + sum(documents["skipped"].values())
    aside = [f"{documents['empty']:,} empty"] if documents["empty"] else []
    aside += [f"{left_out:,} left out"] if left_out else []
    over = (
        f"{report['gap']:,} more than the proven minimum"
        if report["gap"] > 0
        else "the proven minimum"
    )
    return [
        {
            "title": "Packs are full to",
            "figure": percent(report["utilization"]),
            "note": "of their room; the rest is wasted compute",
            "state": _state(report["utilization"], 0.98, 0.9),
        },
        {
            "title": "Tokens lost",
            "figure": percent(share),
            "note": f"{gone:,} of {wanted:,} are in no pack",
            "state": _state(-share, 0, -_MUCH_LOST),
        },
        {"title": "Packs", "figure": f"{report['packs']:,}", "note": over, "state": ""},
        {
            "title": "Documents",
            "figure": f"{documents['in']:,}",
            "state": "",
            "note": ", ".join(aside) or "none empty, none left out",
        },
        {
            "title": "Documents in a pack",
            "figure": f"{spread['p50']:,}",
            "state": "",
            "note": f"is the median; 95% have up to {spread['p95']:,}, one has {spread['max']:,}",
        },
        *_step_time(facts),
        *_trained(facts),
    ]


def _gone(tokens: Ledger) -> tuple[int, int, float]:
    """Tokens lost, tokens that were wanted in the packs, and the one as a share of the other."""
    drawn = Sums.of_ledger(tokens).drawn
    return drawn.tokens_lost, drawn.tokens_in, drawn.tokens_lost_share


def _step_time(facts: Facts) -> list[dict[str, str]]:
    """A card for GPUs that step together."""
    note = f"against equal work for each of {facts.ranks} GPUs"
    card = {
        "title": "Step time",
        "figure": f"{facts.report['straggler']:.2f}×",
        "note": note,
        "state": "",
    }
    return [card] if facts.ranks > 1 else []


def _trained(facts: Facts) -> list[dict[str, str]]:
    """A card for builds with labels."""
    if (tokens := facts.measured.loss_tokens) is None:
        return []
    report = facts.report
    sums = Sums(loss_tokens=tokens, packs=report["packs"], max_length=report["max_length"])
    note = f"of the room carry loss: {tokens:,} tokens have a label"
    return [
        {
            "title": "Tokens trained on",
            "figure": percent(sums.loss_utilization),
            "note": note,
            "state": "",
        }
    ]


def _state(value: float, good: float, fair: float) -> str:
    return "good" if value >= good else "warn" if value >= fair else "bad"


def _findings(facts: Facts) -> list[dict[str, str]]:
    """Findings for the reader, worst first.

    No advice that the comparison of strategies does not bear out.
    """
    report = facts.report
    packs, (gone, wanted, share) = report["packs"], _gone(report["tokens"])
    found: list[tuple[str, str]] = []
    if gone:
        reasons = ", ".join(
            f"{count:,} {reason}" for reason, count in lost(report["tokens"]).items()
        )
        advice = (
            " --overflow split would keep long documents." if report["tokens"]["truncated"] else ""
        )
        state = "bad" if share >= _MUCH_LOST else "warn"
        found.append((state, f"{percent(share)} of the tokens are in no pack: {reasons}.{advice}"))
    elif aside := not_drawn(report["tokens"]):
        drawn = (
            f"each of the {wanted:,} tokens drawn for the mix is in a pack; {aside:,} others "
            "were not drawn"
        )
        found.append(("good", f"Nothing is lost: {drawn}."))
    else:
        found.append(("good", "Nothing is lost: every token of the input is in a pack."))
    skipped = sum(report["documents"]["skipped"].values())
    if skipped:
        reasons = ", ".join(
            f"{count:,} {reason}" for reason, count in report["documents"]["skipped"].items()
        )
        found.append(
            ("warn", f"Rows without usable text were skipped: {reasons.replace('_', ' ')}.")
        )
    if hollow := int(facts.measured.fill.counts[facts.measured.fill.values == 0].sum()):
        found.append(
            (
                "warn",
                f"{hollow:,} packs hold nothing but padding: they make the number of packs a "
                "multiple.",
            )
        )
    mine = next(
        (
            outcome
            for outcome in facts.outcomes
            if outcome.strategy == facts.options.get("strategy")
        ),
        None,
    )
    others = [outcome for outcome in facts.outcomes if mine is not None and outcome.cut <= mine.cut]
    fewest = min(others, key=lambda outcome: outcome.packs, default=None)
    fewer = mine.packs - fewest.packs if mine is not None and fewest is not None else 0
    if fewest is not None and fewer > 0.005 * packs:
        there = (
            f"{fewest.packs:,} packs with strategy {fewest.strategy}, {fewer:,} fewer "
            f"({percent(fewer / packs)})"
        )
        found.append(("warn", f"There would be {there}."))
    elif report["gap"] <= 0:
        found.append(
            ("good", "No plan can have fewer packs: they are as few as the lengths allow.")
        )
    elif report["gap"] <= 0.001 * packs:
        most = f"{report['gap']:,} of the packs ({percent(report['gap'] / packs)})"
        found.append(("good", f"No plan can save more than {most}."))
    mixed = min(
        (one for one in others if one.packs <= 1.01 * packs),
        key=lambda one: abs(one.bias),
        default=None,
    )
    if mixed is not None and report["bias"] > 0.5 and mixed.bias < report["bias"] - 0.2:
        was = f"Packs hold documents of like length (bias {report['bias']:.2f})"
        found.append(
            (
                "warn",
                f"{was}; strategy {mixed.strategy} mixes them better ({_decimals(mixed.bias)}).",
            )
        )
    if facts.ranks > 1 and report["straggler"] > 1.1:
        waits = f"GPUs wait for the slowest pack of each step ({report['straggler']:.2f}× the time)"
        found.append(("warn", f"{waits}; --order balanced evens that out."))
    states = {"bad": "Warning", "warn": "Note", "good": "Good"}
    return [
        {"state": state, "word": word, "text": text}
        for state, word in states.items()
        for of, text in found
        if of == state
    ]


def _legend(facts: Facts) -> list[dict[str, str]]:
    shown = dict.fromkeys((facts.color(number), facts.label(number)) for number in facts.by_size)
    return [{"css": color, "name": name} for color, name in shown]


def _packs(facts: Facts) -> list[dict[str, Any]]:
    """Pictures of the first packs of the first split."""
    split = next(iter(facts.manifest.splits))
    found: list[dict[str, Any]] = []
    for batch in read_batches(facts.output, facts.manifest, split):
        for number in range(min(batch.packs, _PACKS - len(found))):
            found.append(_picture(batch, number, len(found), facts))
        if len(found) == _PACKS:
            break
    return found


def _picture(batch: WindowPacks, pack: int, number: int, facts: Facts) -> dict[str, Any]:
    """One pack: its segments, each followed by the padding it ends in."""
    lengths: list[int] = []
    css: list[str] = []
    titles: list[str] = []

    def draw(tokens: int, style: str, title: str) -> None:
        if tokens:
            lengths.append(tokens)
            css.append(style)
            titles.append(f"{title}: {tokens:,} tokens")

    mine = np.flatnonzero(batch.pack == pack)
    for place, segment in enumerate(mine.tolist()):
        source, title = _segment(batch, segment, facts)
        draw(
            int(batch.real[segment]),
            f"c{place % 2}" if source is None else facts.color(source),
            title,
        )
        draw(int(batch.lengths[segment] - batch.real[segment]), "filler", "padding")
    real = batch.real[mine]
    return {
        "number": number,
        "documents": int((real > 0).sum()),
        "full": float(real.sum() / facts.manifest.max_length),
        "pieces": pack_bars(lengths, css, titles, facts.manifest.max_length),
    }


def _segment(batch: WindowPacks, segment: int, facts: Facts) -> tuple[int | None, str]:
    """Number of the source that gives a segment its colour, and what the segment is."""
    if batch.document is None or batch.document[segment] < 0:
        return None, "a document"
    document = int(batch.document[segment])
    firsts = [source["first_document"] for source in facts.manifest.data["sources"]]
    source = int(np.searchsorted(firsts, document, side="right")) - 1
    start = 0 if batch.start is None else int(batch.start[segment])
    title = f"{facts.names[source]} row {document - firsts[source]:,}" + (
        f" from its token {start:,}" if start else ""
    )
    return (source if len(firsts) > 1 else None), title


def _sources(facts: Facts) -> list[dict[str, Any]]:
    total = max(1, facts.report["tokens"]["tokens_in"])
    rows = []
    for name, source in list(zip(facts.names, facts.report["sources"], strict=True))[:_ROWS]:
        tokens = source["tokens"]
        gone, _, share = _gone(tokens)
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


def _decimals(value: float) -> str:
    """Two decimals, and no minus before zero."""
    return f"{round(value, 2) + 0.0:.2f}"
