"""Print one pack of an output as text, document by document.

\b
$ python scripts/demo_show.py demo/packed demo/tokenizer
pack 0: 2048 tokens, 5 segments ...
"""

import click
from tokenizers import Tokenizer

from packprep.loaders import PackedShards

EDGE = 60  # characters shown at each end of a segment


@click.command(help=__doc__)
@click.argument("output")
@click.argument("tokenizer_folder", metavar="TOKENIZER")
def main(output: str, tokenizer_folder: str) -> None:
    tokenizer = Tokenizer.from_file(f"{tokenizer_folder}/tokenizer.json")
    shards = PackedShards(output)
    pack = max(
        (shards[number] for number in range(min(20, len(shards)))),
        key=lambda pack: len(pack.cu_seqlens),
    )
    print(
        f"\none pack of {len(shards):,}: {len(pack.tokens):,} tokens, cu_seqlens "
        f"{pack.cu_seqlens.tolist()}"
    )
    for segment in pack.segments():
        text = tokenizer.decode(segment.tokens.tolist(), skip_special_tokens=False)
        shown = repr(text) if len(text) <= 2 * EDGE else f"{text[:EDGE]!r} ... {text[-EDGE:]!r}"
        print(
            f"  document {segment.document_id} from token {segment.start}, {len(segment.tokens)} "
            f"tokens: {shown}"
        )


if __name__ == "__main__":
    main()
