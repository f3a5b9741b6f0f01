"""The top of the report page: figures on cards, and findings in sentences."""

from dataclasses import replace
from typing import Any

from packprep.inspect.reencode import recorded_config
from packprep.packing.account import Sums
from packprep.reports.closing import left_out_sentence
from packprep.reports.facts import Facts, decimals, lost, not_drawn, percent
from packprep.reports.utilization import causes, fewest_tokens, small_packs
from packprep.schemas.report import Ledger
from packprep.support.errors import ConfigError

_MUCH_LOST = 0.01  # share of the tokens


def cards(facts: Facts) -> list[dict[str, str]]:
    """Cards of the figures: title, figure, note, and state (good, warn, bad or none)."""
    report, documents = facts.report, facts.report["documents"]
    lost_tokens, wanted, share = lost_and_drawn(report["tokens"])
    spread = report["documents_per_pack"]
    left_out = sum(documents["dropped"].values()) + sum(documents["skipped"].values())
    excluded = [f"{documents['empty']:,} empty"] if documents["empty"] else []
    excluded += [f"{left_out:,} left out"] if left_out else []
    over = (
        f"{report['gap']:,} more than the proven minimum"
        if report["gap"] > 0
        else "the proven minimum"
    )
    most = f"95% of packs have up to {spread['p95']:,}, the maximum is {spread['max']:,}"
    shown = [
        _card(
            "Packs are filled to",
            percent(report["utilization"]),
            "of their length; the rest is wasted compute",
            _state(report["utilization"], 0.98, 0.9),
        ),
        _card(
            "Tokens lost",
            percent(share),
            f"{lost_tokens:,} of {wanted:,} are in no pack",
            _state(-share, 0, -_MUCH_LOST),
        ),
        _card("Packs", f"{report['packs']:,}", over),
        _card(
            "Documents", f"{documents['in']:,}", ", ".join(excluded) or "none empty, none left out"
        ),
        _card("Documents in a pack", f"{spread['p50']:,}", f"is the median; {most}"),
    ]
    if facts.ranks > 1:
        note = f"relative to equal work on each of {facts.ranks} GPUs"
        shown.append(_card("Step time", f"{report['straggler']:.2f}×", note))
    if "loss_tokens" in report and "loss_utilization" in report:
        note = f"of the room: {report['loss_tokens']:,} tokens have a label"
        shown.append(_card("Tokens trained on", percent(report["loss_utilization"]), note))
    return shown


def _card(title: str, figure: str, note: str, state: str = "") -> dict[str, str]:
    return {"title": title, "figure": figure, "note": note, "state": state}


def lost_and_drawn(tokens: Ledger) -> tuple[int, int, float]:
    """Tokens lost, tokens that should be in the packs, and the share of these that is lost."""
    drawn = Sums.of_ledger(tokens).drawn
    return drawn.tokens_lost, drawn.tokens_in, drawn.tokens_lost_share


def _state(value: float, good: float, fair: float) -> str:
    return "good" if value >= good else "warn" if value >= fair else "bad"


def _not_full(facts: Facts) -> list[str]:
    """Sentences on packs that are not full."""
    report, options = facts.report, facts.options
    reasons = causes(
        report["utilization"],
        packs=report["packs"],
        gap_share=report["gap_share"],
        max_length=facts.manifest.max_length,
        strategy=options.get("strategy", ""),
        max_segments_per_pack=options.get("max_segments_per_pack"),
        grouped=options.get("group_column") is not None,
        may_split=options.get("overflow") != "split" and _allows(facts, "overflow", "split"),
    )
    filled = f"Packs are filled to {percent(report['utilization'])} only"
    sentences = [f"{filled}: {reason}" for reason in reasons]
    fill, (least, _) = facts.measured.fill, fewest_tokens(facts.manifest.max_length)
    small = int(fill.counts[(fill.values > 0) & (fill.values < least)].sum())
    return sentences + ([small_packs(small, facts.manifest.max_length)] if small else [])


def _allows(facts: Facts, option: str, value: str) -> bool:
    """True if a build like this one may have another value of an option.

    Two copies of a document never share a pack, except with strategy balanced, so that is no
    advice for a mix that repeats documents.
    """
    mixed = facts.report["mix"]["sources"] if "mix" in facts.report else ()
    if value == "balanced" and any(source["repeated"]["documents"] for source in mixed):
        return False
    changes: dict[str, Any] = {option: value}
    if "phases" in facts.report:
        phase = {"tokens": 1, "max_length": facts.manifest.max_length}
        changes |= {"sources": ("any",), "phases": (phase,), "max_tokens": None}
    try:
        replace(recorded_config(facts.manifest), **changes)
    except ConfigError:
        return False
    return True


def findings(facts: Facts) -> list[dict[str, str]]:
    """Findings for the reader, worst first.

    Advice is given only if the comparison of strategies supports it.
    """
    report = facts.report
    packs, (lost_tokens, wanted, share) = report["packs"], lost_and_drawn(report["tokens"])
    sentences: list[tuple[str, str]] = []
    if lost_tokens:
        # "dropped: too long" reads as "dropped (too long)" in a sentence.
        parts = [(*reason.partition(": "), n) for reason, n in lost(report["tokens"]).items()]
        reasons = ", ".join(f"{n:,} {verb} ({reason})" for verb, _, reason, n in parts)
        may_split = report["tokens"]["truncated"] and _allows(facts, "overflow", "split")
        advice = " Use --overflow split to keep long documents." if may_split else ""
        state = "bad" if share >= _MUCH_LOST else "warn"
        in_no_pack = f"{percent(share)} of the tokens are in no pack: {reasons}."
        sentences.append((state, in_no_pack + advice))
    elif undrawn := not_drawn(report["tokens"]):
        drawn = (
            f"all {wanted:,} tokens drawn for the mix are in the packs; {undrawn:,} others were "
            "not drawn"
        )
        sentences.append(("good", f"Nothing is lost: {drawn}."))
    else:
        sentences.append(("good", "Nothing is lost: every token of the input is in a pack."))
    for number, phase in enumerate(report.get("phases", ()), 1):
        shares = ", ".join(
            f"{source['name']} {percent(source['share'])}" for source in phase["sources"]
        )
        sentences.append(
            (
                "good",
                f"Phase {number} has {phase['tokens']['tokens_packed']:,} tokens in "
                f"{phase['packs']:,} packs of {phase['max_length']:,}, filled to "
                f"{percent(phase['utilization'])}: {shares}.",
            )
        )
    if sentence := left_out_sentence(report):
        sentences.append(("warn", f"{sentence[0].upper()}{sentence[1:]}."))
    skipped = sum(report["documents"]["skipped"].values())
    if skipped:
        reasons = ", ".join(
            f"{count:,} {reason}" for reason, count in report["documents"]["skipped"].items()
        )
        sentences.append(
            ("warn", f"Rows without usable text were skipped: {reasons.replace('_', ' ')}.")
        )
    if only_padding := int(facts.measured.fill.counts[facts.measured.fill.values == 0].sum()):
        sentences.append(
            (
                "warn",
                f"{only_padding:,} packs hold only padding: they bring the number of packs to a "
                "multiple of --packs-multiple-of.",
            )
        )
    sentences += [("warn", f"{sentence}.") for sentence in _not_full(facts)]
    ours = next(
        (
            outcome
            for outcome in facts.outcomes
            if outcome.strategy == facts.options.get("strategy")
        ),
        None,
    )
    others = [
        outcome
        for outcome in facts.outcomes
        if ours is not None
        and outcome.cut <= ours.cut
        and _allows(facts, "strategy", outcome.strategy)
    ]
    fewest = min(others, key=lambda outcome: outcome.figures["packs"], default=None)
    least = fewest.figures["packs"] if fewest is not None else 0
    fewer = ours.figures["packs"] - least if ours is not None and fewest is not None else 0
    if fewest is not None and fewer > 0.005 * packs:
        fewer_packs = (
            f"{least:,} with strategy {fewest.strategy}, {fewer:,} fewer ({percent(fewer / packs)})"
        )
        sentences.append(("warn", f"Another strategy needs fewer packs: {fewer_packs}."))
    elif report["gap"] <= 0:
        sentences.append(("good", "No plan of these documents has fewer packs."))
    elif report["gap"] <= 0.001 * packs:
        most = f"{report['gap']:,} of the packs ({percent(report['gap'] / packs)})"
        sentences.append(("good", f"No plan can save more than {most}."))
    mixed = min(
        (one for one in others if one.figures["packs"] <= 1.01 * packs),
        key=lambda one: abs(one.figures["bias"]),
        default=None,
    )
    bias = 0.0 if mixed is None else mixed.figures["bias"]
    if mixed is not None and report["bias"] > 0.5 and bias < report["bias"] - 0.2:
        was = f"Packs hold documents of similar length (bias {report['bias']:.2f})"
        sentences.append(
            (
                "warn",
                f"{was}; strategy {mixed.strategy} mixes lengths better (bias {decimals(bias)}).",
            )
        )
    if facts.ranks > 1 and report["straggler"] > 1.1:
        waits = f"GPUs wait for the slowest pack of each step ({report['straggler']:.2f}× the time)"
        sentences.append(("warn", f"{waits}; --order balanced makes steps more even."))
    states = {"bad": "Warning", "warn": "Note", "good": "Good"}
    return [
        {"state": state, "word": word, "text": text}
        for state, word in states.items()
        for finding, text in sentences
        if finding == state
    ]
