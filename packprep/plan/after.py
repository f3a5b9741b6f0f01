"""The end of the draw of an output, at which another begins: `--after OUT`.

The manifest of an output has the place at which each stream ended. A stream is known by a digest of
all that decides its tokens, so other sources may come and go beside it. `after` of the inputs has
what an output must remember of those before it: the seed of the draw, the places of all streams,
and the numbers that their rows had in the first output, by which the holdout is drawn.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..schemas.files import digest_of
from ..support.errors import ConfigError


def keys_of(tokens: Mapping[str, Any], in_order: bool) -> list[tuple[str, list[int]]]:
    """Key of each stream, and the numbers of its files. tokens: of the inputs of an output.

    in_order: all files are one stream.
    """
    made, first = list[tuple[str, list[int]]](), 0
    for store in tokens.get("stores", [tokens]):
        for _, of_entry in itertools.groupby(store["sources"], lambda source: source["entry"]):
            files = [{**source, "entry": 0} for source in of_entry]
            key = digest_of({**store, "sources": files})
            made.append((key, list(range(first, first + len(files)))))
            first += len(files)
    return [(digest_of([key for key, _ in made]), list(range(first)))] if in_order else made


def follow(
    data: Mapping[str, Any], tokens: Mapping[str, Any], names: Sequence[str], in_order: bool
) -> dict[str, Any]:
    """What the inputs of a build have as `after`. data: of the manifest of the output before it.

    places: at which each stream begins. rows: what the first row of each source was numbered; None
    for a new source. tokens, names, in_order: of this build. Raises ConfigError if a stream of the
    output has other files now, or other tokens, or another order.
    """
    inputs = data["inputs"]
    before, options = inputs.get("after", {}), inputs["options"]
    if (options.get("order") == "input") != in_order:
        raise ConfigError("--after needs the --order of its output: input, or another; give that")
    streams, sources = dict(before.get("streams", {})), data["sources"]
    for key, numbers in keys_of(inputs["tokens"], in_order):
        firsts = [sources[number]["first_row"] for number in numbers]
        firsts = streams.get(key, {}).get("rows", firsts)
        streams[key] = {"drawn": sources[numbers[0]]["drawn"], "rows": firsts}
    used = {each for source in sources for each in (source["name"], source["digest"])}
    stores = tokens.get("stores", [tokens])
    digests = [source["digest"] for store in stores for source in store["sources"]]
    places, rows = list[int](), list[int | None]()
    for key, numbers in keys_of(tokens, in_order):
        for number in numbers:
            if key not in streams and used & {names[number], digests[number]}:
                raise ConfigError(
                    f"{names[number]} is a source of the output that --after names, with other "
                    "content, other files beside it or other options of its tokens; give the same"
                )
        known = streams.get(key, {"drawn": 0, "rows": [None] * len(numbers)})
        places.append(known["drawn"])
        rows += known["rows"]
    facts = {"identity": data["identity"], "seed": before.get("seed", options.get("seed", 0))}
    return {**facts, "streams": streams, "places": places, "rows": rows}
