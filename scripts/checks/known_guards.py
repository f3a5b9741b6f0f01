"""Find the guards in packprep/engines/known_guards.json again, for the installed versions.

    python scripts/checks/known_guards.py           prints entries that differ
    python scripts/checks/known_guards.py --write   writes the file

About 3 CPU-seconds for each pre-tokenizer and engine. To add a pre-tokenizer, add an entry with its
`models` and `splitting` (of packprep.engines.sweep.splitting), then run with --write.
"""

import importlib.metadata
import json
from typing import Any

import click

from packprep.engines import sweep
from packprep.engines.backends import load_engine
from packprep.engines.guard import Guard
from packprep.engines.known_guards import KNOWN, KnownGuard, known_guards
from packprep.support.errors import InputError

ENGINES: tuple[Any, ...] = ("fastokens", "gigatoken")


def renewed(entry: KnownGuard) -> KnownGuard:
    """The entry with the guards that sweeps find; an engine that is refused is left out."""
    swept = sweep.swept_tokenizer(entry["splitting"])
    reference = load_engine("hf", swept)
    guards = {}
    for name in ENGINES:
        try:
            fast = load_engine(name, swept)
        except InputError:
            continue
        if (guard := sweep.find_guard(fast, reference)) is not None:
            guards[f"{fast.name} {fast.version}"] = str(guard)
    return entry | {"tokenizers": importlib.metadata.version("tokenizers"), "guards": guards}


@click.command(help=__doc__)
@click.option("--write", is_flag=True, help="Write the file.")
def main(write: bool) -> None:
    entries = []
    for entry in known_guards():
        entries.append(renewed(entry))
        state = "equal" if entries[-1] == entry else "different"
        sizes = ", ".join(
            f"{name}: {len(Guard.from_text(text)):,} characters"
            for name, text in entries[-1]["guards"].items()
        )
        click.echo(f"{entry['models']}: {state} ({sizes})")
    if write:
        KNOWN.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
