"""`packprep export`."""

import sys
from pathlib import Path

import click

from ..exports.export import FORMATS, export
from ..support.errors import ConfigError

_WIDTH = max(map(len, FORMATS))
_LINES = "\n".join(f"{name:{_WIDTH}}  {words}" for name, (words, _) in FORMATS.items())
_HELP = f"""Write the packs of OUT, in their order, or its documents, for another trainer.

\b
{_LINES}

\b
Of a token store, megatron writes the documents, BOS and EOS included.
Example: packprep export packed --to trl -o packed-trl
"""

_JOINS = (
    "pretrain_gpt.py shuffles {these}, joins them, and cuts them at every --seq-length tokens. It "
    "finds the ends of documents by EOS alone{eos}, and only with --reset-attention-mask, if its "
    "attention reads that mask: fused causal kernels do not; --reset-position-ids changes nothing "
    "for a model with RoPE; --eod-mask-loss takes the loss from the token after EOS"
)
_PIECES = "; pieces that end without EOS are not found. For packs as they are: --to megatron-bridge"


@click.command(help=_HELP, context_settings={"max_content_width": 80})
@click.argument("place", metavar="OUT|STORE")
@click.option("--to", required=True, metavar="NAME", help="A name of the list above.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Folder to make.")
@click.option("--store", multiple=True, metavar="DIR", help="Token store of a plan that has moved.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def command(place: str, to: str, output: str, store: tuple[str, ...], quiet: bool) -> None:
    """Export, and print what was written."""
    if "://" in output:
        raise ConfigError(f"-o is {output}; export to a folder, and copy that to the store")
    made = export(place, to, output, store)
    if quiet:
        return
    files = [path for path in Path(output).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    for split, count in made.rows.items():
        print(f"{output}: {count:,} {made.these} of {split}")
    print(f"{to}, {len(files):,} files, {size:,.1f} MB")
    if to == "megatron":
        eos = f", {made.eos[0]!r} (id {made.eos[1]})" if made.eos else ", which these have not"
        words = _JOINS.format(these=made.these, eos=eos)
        print(words + (_PIECES if made.these == "packs" else ""), file=sys.stderr)
