"""The top of the report page: figures on cards, and findings in sentences."""

from packprep.packing.account import Sums
from packprep.reports.facts import Facts, decimals, lost, not_drawn, percent
from packprep.schemas.report import Ledger

_MUCH_LOST = 0.01  # share of the tokens


def cards(facts: Facts) -> list[dict[str, str]]:
    report, documents = facts.report, facts.report["documents"]
    gone, wanted, share = lost_and_drawn(report["tokens"])
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


def lost_and_drawn(tokens: Ledger) -> tuple[int, int, float]:
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


def findings(facts: Facts) -> list[dict[str, str]]:
    """Findings for the reader, worst first.

    No advice that the comparison of strategies does not bear out.
    """
    report = facts.report
    packs, (gone, wanted, share) = report["packs"], lost_and_drawn(report["tokens"])
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
                f"{was}; strategy {mixed.strategy} mixes them better ({decimals(mixed.bias)}).",
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
