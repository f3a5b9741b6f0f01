"""`packprep merge`: an output from outputs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.options import QUIET_OPTION, STORE_OPTION, json_option, value_option
from packprep.cli.output_type import output_argument, with_store

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command("merge", short_help="Merge outputs, or rewrite one: shard size, names, tokens.")
@output_argument("outputs", "IN...", several=True)
@value_option("DIR", "-o", "--output", required=True, help="Directory to write.")
@value_option("SIZE", "--shard-size", help="Cut the shards again, of about SIZE bytes.")
@click.option(
    "--names",
    type=click.Choice(["packprep", "hf"]),
    help="Names of the columns. packprep: tokens and cu_seqlens. hf: input_ids, labels, "
    "position_ids and seq_lengths, which TRL and transformers read.",
)
@click.option(
    "--materialize",
    type=click.Choice(["shards", "index"]),
    help="shards: write the tokens of an index into its shards. index: keep an index as it is.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace the output at DIR, which may be IN itself, in one step.",
)
@STORE_OPTION
@json_option("the report as JSON")
@QUIET_OPTION
def command(
    outputs: "tuple[Output, ...]",
    output: str,
    store: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Write the packs of IN..., in this order, as one output with one account.

    Nothing is tokenized or packed again. Several outputs must have the same tokenizer, columns and
    max_length; document ids of the second begin where those of the first end. Of one output, merge
    makes shards of another size, columns of other names, or the shards of an index, which have the
    bytes of the build without one. Names that need labels or position_ids add them, and the other
    direction leaves them out again.

    Every file is compared with its digest. Shards whose bytes do not change are hard links where
    the file system allows it. The same command resumes it.

    \b
    Example:
      packprep merge packed-2025 packed-2026 -o packed
      packprep merge packed -o packed-small --shard-size 100MB
      packprep merge packed -o packed --names hf --overwrite
      packprep merge packed-index -o packed --materialize shards
    """
    from packprep.cli.printing import print_report
    from packprep.derive.merge import merge
    from packprep.output.staging import at_work
    from packprep.support.errors import ConfigError
    from packprep.support.progress import open_progress

    if "://" in output:
        raise ConfigError(
            f"{output} is a URL, and only packprep build writes to a store; give a local "
            "directory, and copy it to the store"
        )
    if by := ", ".join(at_work(Path(output)).values()):
        raise ConfigError(
            f"{output} is being built by tasks of an array ({by}); wait until they are done"
        )
    with open_progress(quiet=quiet) as progress:
        several = len(outputs) > 1
        stores = [with_store(each, store, one_of_several=several) for each in outputs]
        merge(stores, Path(output), progress=progress, **options)
    print_report(Path(output), as_json=as_json, quiet=quiet)
