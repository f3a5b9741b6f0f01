#!/usr/bin/env python3
"""Build mutated rows with random options by both editions, and print every difference.

    scripts/checks/both_editions.py --minutes 30 --seed 1

Rows are those of the record (tests/record/inputs.py), of which some are damaged: a key goes, a
value has another type, text is replaced by odd text. Both editions have to write the same packs
and figures, or to refuse with the same class, files and rows. Exits 1 if there are findings.
"""

import copy
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.helpers.zoo import chat_rows, pair_rows  # noqa: E402
from tests.record import inputs, running  # noqa: E402
from tests.record.main import differing  # noqa: E402

Row = dict[str, Any]
CHAT = {"tokenizer": "in/chat", "max_length": 256, "messages_column": "messages"}
PAIRS = {"pair_columns": ["chosen", "rejected"], "max_length": 96}
SIDES = {**PAIRS, "input_ids_column": "auto"}
KINDS: dict[str, tuple[Callable[[], list[Row]], dict[str, Any]]] = {
    "text": (inputs.rows_of_text, {}),
    "template": (inputs.rows_of_text, {"text_template": "{title}\n{body}"}),
    "ids": (inputs.rows_of_ids, {"input_ids_column": "ids"}),
    "labels": (
        lambda: inputs.rows_of_ids("labels"),
        {"input_ids_column": "ids", "labels_column": "labels:labels"},
    ),
    "mask": (
        lambda: inputs.rows_of_ids("mask"),
        {"input_ids_column": "ids", "labels_column": "mask:mask"},
    ),
    "packed ids": (inputs.packed_rows, {"input_ids_column": "ids", "boundaries": "eos"}),
    "chats": (inputs.conversations, CHAT),
    "thoughts": (lambda: chat_rows(40), CHAT),
    "sharegpt": (inputs.sharegpt, CHAT | {"messages_column": "auto"}),
    "untrained": (inputs.untrained, CHAT),
    "parts": (inputs.with_parts, CHAT),
    "tools": (inputs.with_tools, CHAT | {"tokenizer": "in/qwen3", "max_length": 512}),
    "keeps": (inputs.conversations, CHAT | {"chat_template": "in/keeps.jinja"}),
    "renderer": (inputs.conversations, CHAT | {"renderer": "in/renderer.py:render"}),
    "prompts": (inputs.prompts, {"prompt_column": "question", "response_column": "answer"}),
    "pieces": (inputs.pieces, {"segments_column": "pieces", "max_length": 96}),
    "pairs": (lambda: pair_rows(40), PAIRS | {"prompt_column": "prompt"}),
    "pairs of chats": (inputs.pairs_of_chats, PAIRS | CHAT | {"messages_column": "auto"}),
    "pairs of ids": (
        inputs.pairs_of_ids,
        SIDES | {"labels_column": "chosen_mask,rejected_mask:mask"},
    ),
}
STRATEGIES = (
    *("best_fit", "first_fit", "greedy", "stream", "knapsack", "balanced", "optimal"),
    *("first_fit_input", "wrapped"),
)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "strategy": STRATEGIES,
    "overflow": ("split", "truncate", "truncate:left", "truncate:balanced", "drop", "error"),
    "stride": (1, 7, 30),
    "max_length": (2, 16, 33, 64, 100, 512, 70_000),
    "min_document_tokens": (2, 20),
    "max_document_tokens": (30, 100),
    "min_pack_tokens": (5, 60),
    "max_segments_per_pack": (1, 2, 5),
    "pad_segment_to_multiple": (2, 8),
    "packs_multiple_of": (3, "4:fill"),
    "order": ("input", "shuffle", "length", "balanced:2", "balanced:3:100,1"),
    "seed": (1, 12345),
    "holdout": (0.2, "5%"),
    "limit": (1, 7, 25),
    "on_error": ("skip",),
    "bos": ("<s>", "none"),
    "eos": ("</s>", "none"),
    "continuation_bos": (True,),
    "shuffle_documents": (True,),
    "columns": ([], ["position_ids"], ["document_ids"], ["document_ids", "document_starts"]),
    "names": ("hf",),
    "token_type": ("auto", "int32"),
    "group_column": ("group", "id", "topic"),
    "carry": (["quality"], ["reward:float32"], ["weights", "reward"], ["stars:int8"]),
    "train_on": ("assistant", "last-turn", "all"),
    "turns": ("each", "auto"),
    "truncate_at": ("# Notes", "the"),
    "shard_size": (9_000,),
}
ODD = (
    *("", " ", "\n", "\0", "\ud800", "e\u0301", "\u2028", "<s>", "</s><s>", "a" * 3000, "🙂" * 40),
    *("user", "assistant", "<think>\nx\n</think>\n\n", "{{ x }}", "null", "[]", "0"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3.5, float("nan"), 2**31, 2**63, 10**30, [], {}, [None], [[]]),
    *({"a": 1}, ["a"], [{"role": "user", "content": "x"}], {"role": "user"}, [1, 2, 3], [-100]),
)


def mutated(value: Any, draw: Random) -> Any:
    """The value with one change somewhere in it."""
    made: Any
    if isinstance(value, dict) and value and draw.random() < 0.85:
        made, name = dict(value), draw.choice([*value])
        match draw.randrange(6):
            case 0:
                del made[name]
            case 1:
                key = draw.choice((*ODD[:8], "train", "weight", "role", "name", "tools"))
                made[key] = made[name]
            case _:
                made[name] = mutated(made[name], draw)
        return made
    if isinstance(value, list) and value and draw.random() < 0.85:
        made, place = list(value), draw.randrange(len(value))
        match draw.randrange(6):
            case 0:
                del made[place]
            case 1:
                made.insert(place, copy.deepcopy(made[place]))
            case 2:
                made.reverse()
            case _:
                made[place] = mutated(made[place], draw)
        return made
    if isinstance(value, str) and draw.random() < 0.7:
        place = draw.randrange(len(value) + 1)
        odd = draw.choice(ODD)
        return draw.choice((odd, value[:place] + odd + value[place:]))
    return draw.choice((*VALUES, draw.choice(ODD)))


def lines_of(rows: list[Row], draw: Random) -> Iterator[bytes]:
    """Lines of JSON, a few of them damaged as text."""
    for row in rows:
        line = json.dumps(row, ensure_ascii=draw.random() < 0.8).encode("utf-8", "surrogatepass")
        if draw.random() < 0.004:
            place = draw.randrange(len(line))
            damage = draw.choice((b"", b"\xff", b'"', b"{", b"\\u00"))
            line = line[:place] + damage + line[place + 1 :]
        yield line + draw.choice((b"\n", b"\n", b"\n", b"\r\n", b"\n\n"))


def case_of(number: int, seed: int) -> running.Case:
    """A random set-up, the same for the same numbers."""
    draw = Random(f"{seed} {number}")
    kind = draw.choice([*KINDS])
    make, base = KINDS[kind]
    rows = [copy.deepcopy(row) for row in draw.sample(make(), draw.randrange(1, 16))]
    damaged = draw.choice((0, 0, 1, 1, 2))
    for _ in range(damaged):
        place = draw.randrange(len(rows))
        changed = mutated(rows[place], draw)
        rows[place] = changed if isinstance(changed, dict) else rows[place]
    chosen = draw.sample([*OPTIONS], draw.choice((0, 1, 1, 2, 2, 3, 4)))
    options = base | {name: draw.choice(OPTIONS[name]) for name in chosen}
    if options.get("group_column"):
        options["group_prefix"] = options["group_column"]
    given = {"sources": ["own/x.jsonl"], "tokenizer": "in/tiny", "max_length": 64, "engine": "hf"}
    given |= {"output": "out", "num_proc": 1, "columns": DEFAULT, **options, "quiet": True}
    if options.get("names"):
        del given["columns"]
    files = {"x.jsonl": b"".join(lines_of(rows, draw))}
    return running.Case(f"{seed} {number} {kind}", (("build", given),), files=files)


DEFAULT = ["position_ids", "document_ids", "document_starts"]


def result_of(case: running.Case, made: Path, folder: Path, edition: str) -> tuple[str, Any]:
    """What an edition does: "packs" and the record of them, or "refused" and its error."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return "packs", running.run(case, made, folder, edition)
    except AssertionError as stopped:
        sentence = str(stopped).removeprefix(f"{case.name}: ")
    except Exception as error:
        return "defect", f"{type(error).__name__}: {error}"
    shutil.rmtree(folder)
    refused = running.Case(case.name, case.steps, "error", files=case.files)
    return "refused", (running.run(refused, made, folder, edition), sentence)


def difference(case: running.Case, first: tuple[str, Any], second: tuple[str, Any]) -> str:
    """What differs, in a line; "" for nothing."""
    if first[0] != second[0] or "defect" in (first[0], second[0]):
        said = [
            result[1] if kind == "refused" else str(result)[:300]
            for kind, result in (first, second)
        ]
        return f"{first[0]} / {second[0]}: {' / '.join(said)}"
    if first[0] == "packs":
        return "; ".join(differing(case, {"result": first[1]}, second[1], "second"))
    unsaid = [*running.unsaid(first[1][0], second[1][0])]
    return f"{'; '.join(unsaid)}: {first[1][1]} / {second[1][1]}" if unsaid else ""


@click.command()
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--only", type=int, help="Run this case alone, and print it.")
def main(minutes: float, seed: int, only: int | None) -> None:
    """Compare the editions; prints each finding once for each kind of sentence."""
    ends, number = time.monotonic() + 60 * minutes, only or 0
    ended, seen = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="editions-") as name:
        made, folder = Path(name) / "in", Path(name) / "case"
        made.mkdir()
        inputs.make(made)
        while time.monotonic() < ends:
            case = case_of(number, seed)
            both = [result_of(case, made, folder, edition) for edition in ("first", "second")]
            ended[both[0][0]] += 1
            if only is not None:
                click.echo(f"{case.steps}\n{case.files}\n{both}")
            if found := difference(case, *both):
                kind = "".join(sign for sign in found if not sign.isdigit())[:160]
                seen[kind] += 1
                if seen[kind] <= 2:
                    options = {k: v for k, v in case.steps[0][1].items() if k in OPTIONS}
                    click.echo(f"{case.name} {options}\n    {found[:700]}")
            if only is not None:
                break
            number += 1
    click.echo(f"{number:,} cases ({dict(ended)}), {seen.total():,} differ, {len(seen):,} kinds")
    sys.exit(bool(seen))


if __name__ == "__main__":
    main()
