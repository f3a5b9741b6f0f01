"""`packprep check`."""

import json

import click

from ..look.compare import grid
from ..look.figures import as_text
from ..look.findings import Facts
from ..look.gate import Verdict, check
from ..look.places import look
from ..support.errors import ConfigError, InputError
from .printing import print_sentences


@click.command(
    short_help="Fail CI when the numbers of a build get worse.",
    context_settings={"max_content_width": 80},
)
@click.argument("output", metavar="OUT")
@click.option("--against", metavar="OUT|FILE", help="Baseline: an output, or its report.json.")
@click.option(
    "--tolerance",
    "tolerances",
    multiple=True,
    metavar="NAME=AMOUNT",
    help="How much worse a number may get: utilization=0.002, tokens.dropped.*=100, or, of "
    "its baseline, tokens.truncated=1%. May be repeated.",
)
@click.option("--min-utilization", metavar="SHARE", help="Least utilization: 0.98 or 98%.")
@click.option("--max-lost", metavar="SHARE", help="Most lost tokens: 0.01 or 1%.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    output: str,
    against: str | None,
    tolerances: tuple[str, ...],
    min_utilization: str | None,
    max_lost: str | None,
    as_json: bool,
) -> None:
    """Hold OUT, an output or its report.json, to limits and to a baseline.

    Without --tolerance, utilization may fall and gap_share rise by 0.001, straggler by 0.05. Tokens
    and rows lost for any reason may not rise; max_length, bos_rate and eos_rate may not change. In
    a mix, the tokens of a source may fall by 1%. Exit code 1: a number failed.

    \b
    Examples:
      cp packed/report.json baseline.json      # and commit it
      packprep check packed --against baseline.json --min-utilization 98%
    """
    if against is None and min_utilization is None and max_lost is None:
        raise ConfigError("nothing is checked; give --against, --min-utilization or --max-lost")
    if tolerances and against is None:
        raise ConfigError("--tolerance is for changes; name a baseline with --against")
    before = None if against is None else _facts_of(against).report
    limits = {"min_utilization": min_utilization, "max_lost": max_lost}
    verdicts = list(check(_facts_of(output).report, before, tolerances, **limits))
    failed = [verdict for verdict in verdicts if not verdict.passed]
    if as_json:
        figures = [{**vars(each), "passed": each.passed, "cure": each.cure} for each in verdicts]
        names = {"place": output, "against": against, "passed": not failed}
        click.echo(json.dumps({**names, "figures": figures}))
    else:
        click.echo(output if against is None else f"{output} against {against}")
        titles = ["", "number", "" if against is None else "was", "now", ""]
        for line in grid([titles, *map(_row, verdicts)], slice(2, 4)):
            click.echo(line)
        print_sentences(verdict.sentence for verdict in failed)
    if failed:
        raise click.exceptions.Exit(1)


def _facts_of(place: str) -> Facts:
    shown = look(place)
    if shown.facts is None:
        raise InputError(f"{place} has no report; expected a finished output, or its report.json")
    return shown.facts


def _row(verdict: Verdict) -> list[str]:
    name, was = verdict.name, verdict.baseline
    texts = ["" if was is None else as_text(name, was), as_text(name, verdict.value)]
    return ["ok" if verdict.passed else "FAILED", name, *texts, verdict.allowed]
