"""`packprep verify`: check an output against its manifest."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.amount_types import CountType
from packprep.cli.commands.store import verify_entries
from packprep.cli.completion import of_paths
from packprep.cli.options import STORE_OPTION, json_option, value_option
from packprep.cli.printing import print_json, print_table

if TYPE_CHECKING:
    from packprep.inspect.verdict import Verdict


@click.command(
    "verify",
    short_help="Check every file, invariant and document of an output.",
    epilog="Exit codes: 0 the output is sound, 1 it has findings, 2 there is no output to verify.",
)
@click.argument("output", metavar="OUT", shell_complete=of_paths())
@click.option(
    "--level",
    type=click.Choice(["fast", "full"]),
    default="fast",
    help="fast: check every byte of OUT. full: also tokenize some documents again from their "
    "sources.  [default: fast]",
)
@value_option(
    "N",
    "--sample",
    default=1000,
    type=CountType(),
    help="full and --against: number of documents to tokenize.  [default: 1000]",
)
@click.option(
    "--seed",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="full: seed that chooses the documents.  [default: 0]",
)
@click.option(
    "--against",
    metavar="transformers[:NAME]",
    help="Compare ids with those of AutoTokenizer, of the tokenizer of OUT or the one at NAME.",
)
@value_option(
    "DIR", "--root", help="full: directory that relative source paths start from.  [default: here]"
)
@value_option(
    "PATH|NAME",
    "--tokenizer",
    help="full: the tokenizer, if it has moved since the build. For OUT without a manifest: ids "
    "must be in its vocabulary.",
)
@click.option(
    "--renderer",
    metavar="FILE:NAME",
    help="full: the renderer of the build. It is code, so only you name it.",
)
@value_option("N", "--vocab-size", help="Token ids must be below this; for OUT without a manifest.")
@STORE_OPTION
@click.option(
    "--max-findings",
    default=20,
    metavar="N",
    type=click.IntRange(1),
    help="Findings to show of each kind; all are counted.  [default: 20]",
)
@json_option("the result as JSON")
@click.option(
    "-q", "--quiet", is_flag=True, help="Print no progress, and no table if OUT is sound."
)
@click.pass_context
def command(
    context: click.Context,
    /,
    output: str,
    root: str | None,
    tokenizer: str | None,
    renderer: str | None,
    store: tuple[str, ...],
    against: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Check OUT against its manifest and the format.

    Checks digests, missing and surplus files, every invariant of every pack, BOS and EOS, the
    ledger against the data, and that no document is lost, repeated or cut in the wrong place. Every
    finding names file, pack and segment.

    OUT may also be a token store, each file of which is compared with its digest; an export, whose
    files are compared with the digests of export.json; or packs that TRL or another packer saved
    with save_to_disk, of which the invariants are checked.

    \b
    Example:
      packprep verify packed --level full --sample 1000
    """
    from packprep.inspect.moved import Moved
    from packprep.inspect.verify import verify
    from packprep.support.progress import open_progress
    from packprep.tokens.store_entries import entries_in

    if Path(output).is_dir() and (entries := entries_in(Path(output))):
        context.exit(verify_entries(Path(output), entries, as_json=as_json, quiet=quiet))
    moved = Moved(root=root, tokenizer=tokenizer, renderer=renderer, store=store)
    with open_progress("the files", quiet=quiet) as progress:
        verdict = verify(output, moved=moved, progress=progress, **options)
        if against is not None:
            from packprep.inspect.against import compare_output

            compare_output(against, verdict, options["sample"], moved)
    if as_json:
        print_json(as_dict(verdict))
    elif not quiet or not verdict.sound:
        _print(verdict)
    context.exit(0 if verdict.sound else 1)


def as_dict(verdict: "Verdict") -> dict[str, object]:
    """The result as JSON values.

    `findings` has the first of each kind, `counts` the number of all.
    """
    facts = {spec.name: getattr(verdict, spec.name) for spec in dataclasses.fields(verdict)}
    return (
        {"sound": verdict.sound}
        | facts
        | {
            "findings": [
                {
                    key: value
                    for key, value in dataclasses.asdict(finding).items()
                    if value not in (None, "")
                }
                for finding in verdict.findings
            ],
            "counts": dict(verdict.findings.counts),
        }
    )


def _print(verdict: "Verdict") -> None:
    """Print findings first, so that the last lines are the summary."""
    from rich.text import Text

    for kind, kept in verdict.findings.kept.items():
        for finding in kept:
            click.echo(f"{click.style(kind, fg='red', bold=True)}  {finding}")
        if more := verdict.findings.counts[kind] - len(kept):
            click.echo(f"{click.style(kind, fg='red', bold=True)}  and {more:,} more")
    count = len(verdict.findings)
    result = (
        Text("sound", "green")
        if verdict.sound
        else Text("1 finding" if count == 1 else f"{count:,} findings", "red")
    )
    rows: list[tuple[str, str | Text]] = [
        ("result", result),
        ("files", f"{verdict.files:,} ({verdict.bytes:,} bytes)"),
        ("packs", f"{verdict.packs:,} ({verdict.segments:,} segments, {verdict.tokens:,} tokens)"),
    ]
    for source in verdict.sources[:12]:
        counts = [f"{source['documents']:,} documents"]
        counts += [
            f"{source[end]:.4%} with {end.upper()}"
            for end in ("bos", "eos")
            if source[end] is not None
        ]
        rows.append((str(source["source"]), ", ".join(counts)))
    if len(verdict.sources) > 12:
        rows.append((f"{len(verdict.sources) - 12:,} more sources", "see --json"))
    if verdict.level == "full":
        rows.append(("tokenized again", f"{verdict.sampled:,} rows"))
    if verdict.against:
        rows.append(("ids compared with", verdict.against))
    rows += [("not checked", reason) for reason in verdict.not_checked]
    print_table(verdict.output, rows)
