"""`packprep check`: a CI gate on the numbers of a build."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.options import json_option, value_option
from packprep.cli.output_type import output_argument
from packprep.cli.printing import print_grid, print_json, print_sentence
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command(
    "check",
    short_help="Fail CI when the numbers of a build get worse.",
    epilog="Exit codes: 0 all checks passed, 1 a check failed, 2 wrong usage or bad input.",
)
@output_argument(metavar="OUT|REPORT", completes="file")
@value_option("FILE", "--baseline", help="Baseline written by --update-baseline, or a report.json.")
@click.option(
    "--tolerance",
    "tolerances",
    multiple=True,
    metavar="NAME=CHANGE",
    help="Allowed change for the worse: a number, or with % a share of the baseline. NAME is a key "
    "of report.json, nested keys with dots: utilization=-0.002, tokens.dropped=+100, "
    "tokens_per_second=-20%. May be repeated.",
)
@value_option(
    "SHARE", "--min-utilization", help="Lowest utilization that passes, such as 0.98 or 98%."
)
@value_option(
    "SHARE", "--max-loss", help="Highest share of lost tokens that passes, such as 0.01 or 1%."
)
@click.option(
    "--update-baseline",
    is_flag=True,
    help="Write the numbers to the --baseline FILE instead of comparing.",
)
@value_option("FILE", "--summary", help="Write the result as Markdown.")
@json_option("the result as JSON")
def command(
    output: "Output",
    baseline: Path | None,
    tolerances: tuple[str, ...],
    min_utilization: float | None,
    max_loss: float | None,
    update_baseline: bool,
    summary: Path | None,
    as_json: bool,
) -> int:
    """Compare the numbers of OUT with a baseline that is under version control.

    OUT is an output directory or its report.json.

    Without --tolerance, utilization may fall by 0.001, gap_share may rise by 0.001 and straggler
    by 0.05. Lost tokens and rows may not rise, for any reason, nor may text that a chat
    template leaves out. max_length, straggler_ranks, bos_rate and eos_rate may not change. In a
    mix, the share of a source may move by 0.005, its tokens may fall by 1 % and its epochs, above
    1, rise by 0.01; tokens that are not drawn may rise. A GitHub workflow shows the result on the
    page of the run.

    \b
    Example:
      packprep check packed --baseline baseline.json --update-baseline
      packprep check packed --baseline baseline.json --min-utilization 0.98 \\
        --tolerance tokens.truncated=+1%
    """
    from packprep.inspect.report_file import read_report
    from packprep.reports import gate, gate_formats

    if update_baseline and baseline is None:
        raise ConfigError("--update-baseline writes the file that --baseline names; give both")
    if baseline is None and min_utilization is None and max_loss is None:
        raise ConfigError(
            "there is nothing to check; give --baseline FILE, --min-utilization or --max-loss"
        )
    if tolerances and baseline is None:
        raise ConfigError("--tolerance is for changes since a baseline; give --baseline FILE")
    report = read_report(output)
    figures = {} if baseline is None or update_baseline else gate.read_baseline(baseline)
    limits = {"min_utilization": min_utilization, "max_loss": max_loss}
    verdicts = gate.check_figures(report, figures, tolerances, **limits)
    failed = [verdict for verdict in verdicts if not verdict.passed]
    if update_baseline and baseline is not None and not failed:
        written = gate.write_baseline(baseline, report, tolerances)
        click.echo(f"wrote {len(written)} numbers of {output} to {baseline}", err=as_json)
    elif figures and (missing := gate.not_in_baseline(report, figures)):
        names, verb = ", ".join(missing), "is" if len(missing) == 1 else "are"
        click.echo(
            f"{baseline} does not have {names}, which {verb} not checked; write it again with "
            "--update-baseline",
            err=True,
        )
    text = gate_formats.markdown(str(output), verdicts)
    if summary is not None:
        summary.write_text(text, "utf-8")
    if verdicts:
        gate_formats.append_github_summary(text)
    if as_json:
        print_json(gate_formats.as_json(verdicts))
    elif verdicts:
        titles = ("", "number", "baseline", "now", "change", "allowed")
        print_grid(
            str(output),
            titles,
            gate_formats.rows(verdicts),
            keys=2,
            left=(0, 1, 5),
            colours=["green" if verdict.passed else "red" for verdict in verdicts],
        )
        for verdict in failed:
            print_sentence(verdict.sentence, "red")
    return 1 if failed else 0
