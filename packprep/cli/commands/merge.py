"""`packprep merge`: an output from outputs, or a token store from stores."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packprep.cli.options import QUIET_OPTION, STORE_OPTION, json_option, value_option
from packprep.cli.output_type import output_argument, with_store

if TYPE_CHECKING:
    from packprep.schemas.manifest import Output


@click.command("merge", short_help="Merge outputs, or token stores; or rewrite one output.")
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

    IN... may be token stores: DIR is then one that has the entries of all, each once, in this
    order. packprep pack DIR makes the output that packprep pack IN... makes.

    Every file is compared with its digest. Files whose bytes do not change are hard links where the
    file system allows it. The same command resumes it.

    \b
    Example:
      packprep merge packed-2025 packed-2026 -o packed
      packprep merge packed -o packed-small --shard-size 100MB
      packprep merge packed -o packed --names hf --overwrite
      packprep merge packed-index -o packed --materialize shards
      packprep merge web-tokens code-tokens -o tokens
    """
    from packprep.cli.commands.store import print_store
    from packprep.cli.printing import print_report
    from packprep.derive.merge import merge
    from packprep.derive.stores import merge_stores
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
    if (token_stores := _token_stores(outputs, options | {"store": store})) is not None:
        with open_progress(quiet=quiet) as progress:
            merge_stores(token_stores, Path(output), progress)
        print_store(output, as_json=as_json, quiet=quiet)
        return
    with open_progress(quiet=quiet) as progress:
        several = len(outputs) > 1
        stores = [with_store(each, store, one_of_several=several) for each in outputs]
        merge(stores, Path(output), progress=progress, **options)
    print_report(Path(output), as_json=as_json, quiet=quiet)


def _token_stores(
    outputs: "tuple[Output, ...]", options: Mapping[str, object]
) -> list[Path] | None:
    """The inputs if they are token stores; None if they are outputs.

    ConfigError for some of both, and for options of outputs.
    """
    from packprep.support.errors import ConfigError
    from packprep.tokens.store_entries import is_store

    stores = [each for each in outputs if isinstance(each, Path) and is_store(each)]
    if not stores:
        return None
    if others := [str(each) for each in outputs if each not in stores]:
        raise ConfigError(
            f"{stores[0]} is a token store, and {others[0]} is not; merge stores by themselves"
        )
    if typed := [f"--{name.replace('_', '-')}" for name, value in options.items() if value]:
        raise ConfigError(
            f"{stores[0]} is a token store, and {typed[0]} is for outputs; leave it out"
        )
    return stores
