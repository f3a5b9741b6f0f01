"""Compare converted tokenizers with their own library, on all the text of ../shared/data.

    python scripts/checks/tokenizer_formats.py                  100 MB for each format
    python scripts/checks/tokenizer_formats.py --megabytes 5    less

Needs tiktoken, sentencepiece and mistral-common, whose wheel has a tekken.json and a SentencePiece
model. The tiktoken file is written here, from the vocabulary of ../shared/data's Llama 3.2. Every
eighth document has special tokens and other hostile text inside. The engine is the one that a build
chooses; the reference encodes the first 5 MB too. Then the speed of that engine is compared with
that of a tokenizer.json of others. Exits 1 at the first different id.
"""

import base64
import gzip
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from packprep.engines.backends import Engine, HfEngine, added_tokens
from packprep.engines.compare import Library, first_difference, unequal
from packprep.engines.conversions import TOKENIZER_FORMATS
from packprep.engines.parity import choose_engine
from packprep.engines.probes import probes
from packprep.engines.sweep import byte_names
from packprep.engines.tokenizer import load_tokenizer

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
REFERENCE_BYTES = 5_000_000


def documents(tokenizer_json: bytes | None) -> Iterator[str]:
    """Documents of all files, in turn, every eighth with hostile text if a tokenizer is given."""
    tried = [] if tokenizer_json is None else probes(added_tokens(tokenizer_json))
    hostile = [text for text in tried if len(text) < 2000]
    rng = random.Random(7)
    paths = sorted((DATA / "text").glob("*.gz"))
    files = [gzip.decompress(path.read_bytes()).splitlines() for path in paths]
    rows = map(json.loads, filter(None, itertools.chain(*itertools.zip_longest(*files))))
    for number, row in enumerate(rows):
        if "text" in row:
            text = row["text"]
        else:
            text = "\n".join(str(turn["content"]) for turn in row["messages"])
        if hostile and number % 8 == 0:
            for _ in range(3):
                place = rng.randrange(len(text) + 1)
                text = text[:place] + rng.choice(hostile) + text[place:]
        yield text


def llama_file(folder: Path) -> Path:
    """A tiktoken file with the vocabulary, pattern and special tokens of Llama 3.2."""
    source = json.loads((DATA / "tokenizers/llama3_2/tokenizer.json").read_bytes())
    byte = {name: number for number, name in enumerate(byte_names())}
    added = {token["id"]: token["content"] for token in source["added_tokens"]}
    lines = [
        f"{base64.b64encode(bytes(byte[c] for c in token)).decode()} {rank}\n"
        for token, rank in sorted(source["model"]["vocab"].items(), key=lambda entry: entry[1])
        if rank not in added
    ]
    (folder / "tokenizer.model").write_text("".join(lines))
    pattern = source["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    config = {"pat_str": pattern, "added_tokens_decoder": added}
    ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | ends))
    return folder / "tokenizer.model"


def llama_json(path: Path) -> bytes:
    """The tokenizer.json that transformers makes of a SentencePiece model of Llama's kind."""
    from transformers import LlamaTokenizer

    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "tokenizer.model").write_bytes(path.read_bytes())
        made: str = LlamaTokenizer.from_pretrained(name).backend_tokenizer.to_str()
    return made.encode()


def compare(path: Path, size: int) -> bytes:
    """Compare all documents; the tokenizer.json."""
    start = time.perf_counter()
    tokenizer = load_tokenizer(path, bos="none", eos="none")
    click.echo(f"{path}: loaded in {time.perf_counter() - start:.1f} s")
    for note in tokenizer.notes:
        click.echo(f"  {note}")
    raw, config = path.read_bytes(), path.with_name("tokenizer_config.json")
    row = next(row for row in TOKENIZER_FORMATS if row.begins.match(raw))
    conversion = row.convert(path, raw, json.loads(config.read_text()) if config.exists() else {})
    for encode, parses in ((conversion.encode, False), (conversion.parse, True)):
        if encode is None:
            continue
        chosen = choose_engine("auto", tokenizer.json, parse_special_tokens=parses)
        reference = HfEngine(tokenizer.json, parse_special_tokens=parses)
        original = Library(row.library, "", encode)
        done, count, tokens = 0, 0, 0
        texts = documents(tokenizer.json)
        while done < size and (batch := list(itertools.islice(texts, 500))):
            engines: list[Engine] = [chosen.engine] + [reference] * (done < REFERENCE_BYTES)
            array = pa.array(batch, pa.large_string())
            expected = original.encode(array)
            for engine in engines:
                if len(bad := unequal(*engine.encode(array), *expected)):
                    difference = first_difference(engine, original, [batch[bad[0]]])
                    sys.exit(f"{path}, {engine.name}: {difference}")
            done, count = done + sum(len(text.encode()) for text in batch), count + len(batch)
            tokens += len(expected[0])
        special = "special tokens parsed" if parses else "special tokens as text"
        click.echo(
            f"  {row.library}, {special}, engine {chosen.engine.name}: {done:,} bytes in {count:,} "
            f"documents, {tokens:,} ids are equal"
        )
    return tokenizer.json


def speeds(converted: bytes, native: bytes) -> None:
    """Print the speed of both, each the best of five in turn."""
    texts = list(itertools.islice(documents(None), 0, 4000, 4))
    array = pa.array(texts, pa.large_string())
    size = sum(len(text.encode()) for text in texts)
    engines = [choose_engine("auto", each).engine for each in (converted, native)]
    seconds = np.full((5, 2), np.inf)
    for turn, place in itertools.product(range(5), range(2)):
        start = time.perf_counter()
        engines[place].encode(array)
        seconds[turn, place] = time.perf_counter() - start
    ours, theirs = size / 1e6 / seconds.min(0)
    click.echo(
        f"  converted {ours:.1f} MB/s with {engines[0].name}, a tokenizer.json of others "
        f"{theirs:.1f} MB/s with {engines[1].name}: {ours / theirs:.2f}"
    )


@click.command(help=__doc__)
@click.option("--megabytes", default=100, help="Text for each format.")
def main(megabytes: int) -> None:
    import mistral_common

    wheel: Any = Path(str(mistral_common.__file__)).parent / "data"
    nemo = (DATA / "tokenizers/mistral_nemo/tokenizer.json").read_bytes()
    llama = (DATA / "tokenizers/llama3_2/tokenizer.json").read_bytes()
    with tempfile.TemporaryDirectory() as name:
        model = wheel / "tokenizer.model.v1"
        for path, native in (
            (llama_file(Path(name)), llama),
            (wheel / "tekken_240911.json", nemo),
            (model, llama_json(model)),
        ):
            speeds(compare(path, megabytes * 1_000_000), native)


if __name__ == "__main__":
    main()
