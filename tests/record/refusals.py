"""Bad inputs of the record: files, rows, options and damaged outputs that are refused.

The record has the exit code, the class of the error, and the files, rows, columns and figures that
it names. Another edition may name more.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import zstandard

from tests.faults.kinds import FILES, FORMATS, flipped, whole

from .running import Case
from .setups import BASE, CHAT, IDS, PAIRS, PIECES

Options = dict[str, Any]

GOOD = whole(".jsonl")
SPOKEN = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
TEXT = {"bad.jsonl": GOOD}


def cases() -> list[Case]:
    """All bad inputs, in the order of the record."""
    made = [
        *_rows(),
        *_files(),
        *_compressed(),
        *_places(),
        *_options(),
        *_exclusions(),
        *_conversations(),
        *_ids(),
        *_pieces(),
        *_tokenizers(),
        *_yaml(),
        *_outputs(),
    ]
    names = [case.name for case in made]
    assert len({*names}) == len(names), "two bad inputs have one name"
    return made


def _refused(name: str, files: dict[str, bytes], *sources: Any, **options: Any) -> Case:
    """A build of the file `bad...`, or of these sources, that is refused."""
    listed = [*sources] or [f"own/{name}" for name in files if name.startswith("bad")]
    given = {"sources": listed, **BASE, "max_length": 64, "quiet": True} | options
    given = {key: value for key, value in given.items() if value is not None}
    return Case(name, (("build", given),), "error", files)


def _rows() -> Iterator[Case]:
    """A bad row among good ones, of each format."""
    for suffix, form in FORMATS.items():
        options = {"sample_by": "line"} if suffix == ".txt" else {}
        for number, kind in enumerate(form.rows):
            if kind.reason != "too_large":  # the largest row is no option of the second edition
                bad = {f"bad{suffix}": form.bad(kind)}
                yield _refused(f"row {suffix[1:]} {number}, {kind.reason}", bad, **options)


def _files() -> Iterator[Case]:
    for name, (suffix, content, _) in FILES.items():
        if "endless" not in name:
            yield _refused(f"file, {name}", {f"bad{suffix}": content})


def _compressed() -> Iterator[Case]:
    packed = {
        ".gz": gzip.compress(GOOD, mtime=0),
        ".zst": zstandard.ZstdCompressor(write_checksum=True).compress(GOOD),
    }
    for suffix, data in packed.items():
        damaged = {
            "cut off": data[: len(data) // 2],
            "cut off at the end": data[:-3],
            "its header alone": data[:6],
            "a byte flipped": flipped(data, len(data) // 2),
            "its checksum flipped": flipped(data, len(data) - 5),
            "not compressed": b"plain text\n" * 99,
        }
        for name, content in damaged.items():
            yield _refused(f"compressed {suffix}, {name}", {f"bad.jsonl{suffix}": content})


def _places() -> Iterator[Case]:
    yield _refused("place, no such file", {}, "own/gone.jsonl")
    yield _refused("place, no match of a glob", TEXT, "own/*.parquet")
    yield _refused("place, a folder without files", {"empty/x.pdf": b"x"}, "own/empty")
    yield _refused("place, an unknown suffix", {"bad.pdf": b"x"})
    yield _refused("place, the second of two", TEXT, "own/bad.jsonl", "own/gone.jsonl")
    yield _refused("place, no source", {}, sources=[])
    yield _refused("place, a row of the second file", TEXT | {"bad2.jsonl": b'{"text": 1}\n'})
    for suffix, content in (("bin", b"\1\0" * 8), ("ds", b"\1\0" * 8)):
        yield _refused(f"place, a .{suffix} without its index", {f"bad.{suffix}": content})
    megatron = {"bad.bin": b"\1\0" * 8, "bad.idx": b"MMIDIDX\0\0" + b"\1" * 20}
    yield _refused("place, a damaged index of Megatron", megatron, "own/bad.bin")
    yield _refused("place, only rows without text", {"bad.jsonl": b'{"text": ""}\n' * 3})
    yield _refused("place, an output", {}, "in/a.jsonl", output="in/a.jsonl")


def _options() -> Iterator[Case]:
    values: Options = {
        "max_length": ["1", "0", "many"],
        "strategy": ["best", "balanced:0", "best_fit:3", "balanced:x"],
        "overflow": ["cut", "split:left", "truncate:middle"],
        "stride": ["-1", "64", "100"],
        "order": ["random", "balanced:0", "balanced:2:x", "input:a"],
        "seed": ["-1", "x"],
        "holdout": ["1", "-0.1", "x", "120%"],
        "min_document_tokens": ["-1", "x"],
        "max_document_tokens": ["-1"],
        "min_pack_tokens": ["65", "x"],
        "max_segments_per_pack": ["0"],
        "pad_segment_to_multiple": ["0", "3"],
        "packs_multiple_of": ["0", "x"],
        "limit": ["0", "x"],
        "max_tokens": ["0"],
        "bos": ["<no>"],
        "eos": ["<no>"],
        "turns": ["all"],
        "train_on": ["user"],
        "on_error": ["ignore"],
        "num_proc": ["0"],
        "executor": ["slurm"],
        "part": ["2/2", "x"],
        "max_memory": ["much"],
        "shard_size": ["0"],
        "window": ["x"],
        "token_type": ["int8"],
        "engine": ["rust"],
        "truncate_at": ["("],
    }
    for name, wrong in values.items():
        for value in wrong:
            yield _refused(f"option {name} {value}", {}, "in/a.jsonl", **{name: value})
    yield _refused(
        "option boundaries pad", {}, "in/packed_ids.jsonl", **IDS | {"boundaries": "pad"}
    )
    yield _refused("option columns", {}, "in/a.jsonl", columns=["labels"])
    yield _refused("option weights, one for two", {}, "in/a.jsonl", "in/b.jsonl", weights=[1])
    yield _refused("option weights, zero", {}, "in/a.jsonl", "in/b.jsonl", weights=[1, 0])
    yield _refused("option carry, twice", {}, "in/rows.jsonl", carry=["stars", "stars"])
    yield _refused("option carry, a type", {}, "in/rows.jsonl", carry=["stars:complex"])
    yield _refused("option carry, no such column", {}, "in/rows.jsonl", carry=["price"])
    yield _refused("option carry, text", {}, "in/rows.jsonl", carry=["title"])
    yield _refused(
        "option carry, a fraction as a whole number", {}, "in/rows.jsonl", carry=["quality:int32"]
    )
    yield _refused("option group, no such column", {}, "in/a.jsonl", group_column="kind")
    yield _refused("option text, no such column", {}, "in/rows.jsonl", text_column="content")
    yield _refused(
        "option text, a template of no column", {}, "in/rows.jsonl", text_template="{name}"
    )
    yield _refused("option text, a broken template", {}, "in/rows.jsonl", text_template="{title")
    yield _refused("option overflow error", {}, "in/a.jsonl", overflow="error")
    yield _refused(
        "option strategy balanced, too few packs", {}, "in/a.jsonl", strategy="balanced:3"
    )
    yield _refused(
        "option multiple, more than there are", {}, "in/c.jsonl", packs_multiple_of="5000"
    )
    yield _refused("option holdout of one document", {}, "in/a.jsonl", limit=2, holdout=0.5)
    yield _refused("option limit of a source", {}, {"path": "in/a.jsonl", "limit": 0})


def _exclusions() -> Iterator[Case]:
    chats = {**CHAT, "messages_column": "messages"}
    pairs = {**PAIRS, "prompt_column": "prompt"}
    both: dict[str, tuple[str, Options]] = {
        "text and a template of text": (
            "rows.jsonl", {"text_column": "body", "text_template": "{body}"}),
        "messages and ids": ("openai.jsonl", chats | {"input_ids_column": "ids"}),
        "messages and pieces": ("openai.jsonl", chats | {"segments_column": "pieces"}),
        "messages and bos": ("openai.jsonl", chats | {"bos": "<s>"}),
        "pairs and split": ("pairs.jsonl", pairs | {"overflow": "split"}),
        "pairs and wrapped": ("pairs.jsonl", pairs | {"strategy": "wrapped"}),
        "pairs and one segment": ("pairs.jsonl", pairs | {"max_segments_per_pack": 1}),
        "pairs and hf": ("pairs.jsonl", pairs | {"names": "hf"}),
        "one side of a pair": ("pairs.jsonl", pairs | {"pair_columns": ["chosen"]}),
        "a pair of one column": ("pairs.jsonl", pairs | {"pair_columns": ["chosen", "chosen"]}),
        "wrapped and stride": ("a.jsonl", {"strategy": "wrapped", "stride": 4}),
        "wrapped and groups": ("rows.jsonl", {"strategy": "wrapped", "group_column": "group"}),
        "wrapped and segments": ("a.jsonl", {"strategy": "wrapped", "max_segments_per_pack": 2}),
        "wrapped and padding": ("a.jsonl", {"strategy": "wrapped", "pad_segment_to_multiple": 2}),
        "stride and truncate": ("a.jsonl", {"stride": 4, "overflow": "truncate"}),
        "turns and text": ("a.jsonl", {"turns": "each"}),
        "turns and all": ("openai.jsonl", chats | {"turns": "each", "train_on": "all"}),
        "a template and text": ("a.jsonl", {"chat_template": "in/keeps.jinja"}),
        "balanced turns and text": ("a.jsonl", {"overflow": "truncate:balanced"}),
        "truncate at and chats": ("openai.jsonl", chats | {"truncate_at": "x"}),
        "from and to": ("a.jsonl", {"min_document_tokens": 9, "max_document_tokens": 8}),
        "vocabulary and text": ("a.jsonl", {"tokenizer": None, "vocab_size": 500}),
        "split at and text": ("a.jsonl", {"boundaries": "eos"}),
    }  # fmt: skip
    for name, (source, options) in both.items():
        yield _refused(f"together, {name}", {}, f"in/{source}", **options)


def _conversations() -> Iterator[Case]:
    user, answer = SPOKEN
    wrong: dict[str, Any] = {
        "null": None,
        "no messages": [],
        "an object": {"role": "user"},
        "a text": ["hi"],
        "no role": [user, {"content": "x"}],
        "no content": [{"role": "user"}],
        "a number as content": [{**user, "content": 3}],
        "an unknown role": [{**user, "role": "<|im_end|>"}],
        "a picture": [user, {**answer, "content": ["a", {"type": "image"}]}],
        "a weight": [user, {**answer, "weight": 0.5}],
        "train as text": [user, {**answer, "train": "no"}],
        "a trained question": [{**user, "train": True}, answer],
    }
    for name, messages in wrong.items():
        rows = [{"messages": SPOKEN}] * 4 + [{"messages": messages}]
        yield _refused(
            f"chat, {name}", {"bad.jsonl": _lines(rows)}, **CHAT, messages_column="messages"
        )
    yield _refused(
        "chat, no such column",
        {"bad.jsonl": _lines([{"messages": SPOKEN}])},
        **CHAT,
        messages_column="chat",
    )
    yield _refused("chat, none found", TEXT, **CHAT, messages_column="auto")
    yield _refused(
        "chat, no template",
        {"bad.jsonl": _lines([{"messages": SPOKEN}])},
        messages_column="messages",
    )
    templates = {
        "broken": b"{% for m in messages %}",
        "raises": b"{{ raise_exception('roles must alternate') }}",
        "not UTF-8": b"\xff",
        "endless": b"{% for a in range(99999) %}{% for b in range(99999) %}x"
        b"{% endfor %}{% endfor %}",
    }
    for name, template in templates.items():
        files = {"bad.jsonl": _lines([{"messages": SPOKEN}]), "x.jinja": template}
        yield _refused(
            f"template, {name}",
            files,
            **CHAT,
            messages_column="messages",
            chat_template="own/x.jinja",
        )
    yield _refused(
        "template, no such file",
        TEXT,
        **CHAT,
        messages_column="messages",
        chat_template="own/gone.jinja",
    )
    sides = _lines(
        [{"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": "b"}]
    )
    yield _refused("pair, one side", {"bad.jsonl": sides}, **PAIRS, prompt_column="prompt")
    yield _refused(
        "prompt, no response",
        {"bad.jsonl": _lines([{"q": "a", "a": "b"}, {"q": "a"}])},
        prompt_column="q",
        response_column="a",
    )


def _lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _ids() -> Iterator[Case]:
    good = {"ids": [5, 6, 7], "labels": [-100, 6, 7], "mask": [0, 1, 1], "w": [1, 2, 3]}
    labels, mask = {"labels_column": "labels:labels"}, {"labels_column": "mask:mask"}
    wrong: dict[str, tuple[Options, Options]] = {
        "outside of the vocabulary": ({"ids": [5, 9999]}, {}),
        "negative": ({"ids": [5, -1]}, {}),
        "text": ({"ids": "5 6"}, {}),
        "a fraction": ({"ids": [5, 6.5]}, {}),
        "null": ({"ids": None}, {}),
        "null inside": ({"ids": [5, None]}, {}),
        "fewer labels": ({"labels": [6]}, labels),
        "more labels": ({"labels": [6, 7, 8, 9]}, labels),
        "a label that is no token": ({"labels": [-100, 99999, 7]}, labels),
        "labels that are null": ({"labels": None}, labels),
        "a mask of 2": ({"mask": [0, 2, 1]}, mask),
        "a shorter mask": ({"mask": [0, 1]}, mask),
        "fewer weights": ({"w": [1]}, {"carry": ["w"]}),
    }
    for name, (bad, options) in wrong.items():
        named = {"ids", *bad}
        rows = [{key: row[key] for key in row if key in named} for row in [good] * 3 + [good | bad]]
        yield _refused(f"ids, {name}", {"bad.jsonl": _lines(rows)}, **IDS | options)
    yield _refused(
        "ids, no such column", {"bad.jsonl": _lines([good])}, **IDS | {"input_ids_column": "tokens"}
    )
    yield _refused("ids, no vocabulary", {"bad.jsonl": _lines([good])}, **IDS | {"tokenizer": None})


def _pieces() -> Iterator[Case]:
    good = [{"text": "a", "train": False}, {"text": "b", "train": True}]
    wrong: dict[str, Any] = {
        "null": None,
        "a text": "a",
        "no train": [{"text": "a"}],
        "train as text": [{"text": "a", "train": "yes"}],
        "text and ids": [{"text": "a", "token_ids": [5], "train": True}],
        "an id outside of the vocabulary": [{"token_ids": [99999], "train": True}],
    }
    for name, row in wrong.items():
        rows = [{"pieces": good}] * 2 + [{"pieces": row}]
        yield _refused(f"pieces, {name}", {"bad.jsonl": _lines(rows)}, **PIECES)


def _tokenizers() -> Iterator[Case]:
    wrong = {"empty": b"", "no JSON": b"x", "another JSON": b"{}", "a list": b"[]"}
    for name, content in wrong.items():
        yield _refused(
            f"tokenizer, {name}", TEXT | {"t/tokenizer.json": content}, tokenizer="own/t"
        )
    yield _refused("tokenizer, no such folder", TEXT, tokenizer="own/gone/tokenizer.json")
    yield _refused("tokenizer, a folder without one", TEXT | {"t/x": b""}, tokenizer="own/t")
    yield _refused("tokenizer, none", TEXT, tokenizer=None)
    yield _refused("tokenizer, names no ends", TEXT, tokenizer="in/bare")


def _yaml() -> Iterator[Case]:
    """Files of options, which are the same in both editions but for the keys."""
    wrong = {
        "no YAML": b"a: [",
        "a list": b"- a\n",
        "an unknown key": b"max_lenght: 64\n",
        "a key twice": b"seed: 1\nseed: 2\n",
        "a variable that is not set": b"seed: ${RECORD_NOT_SET}\n",
        "an include that is not there": b"include: gone.yaml\n",
        "an include of itself": b"include: x.yaml\n",
        "an alias": b"a: &a [1]\nb: *a\n",
        "a wrong value": b"max_length: [1]\n",
    }
    for name, content in wrong.items():
        arguments = ("in/a.jsonl", "-o", "out", "--tokenizer", "in/tiny", "-q", "-c", "own/x.yaml")
        yield Case(f"yaml, {name}", (("build", arguments),), "error", {"x.yaml": content})
    missing = ("in/a.jsonl", "-o", "out", "--tokenizer", "in/tiny", "-q", "-c", "own/gone.yaml")
    yield Case("yaml, no such file", (("build", missing),), "error")
    unknown = ("in/a.jsonl", "-o", "out", "--tokenizer", "in/tiny", "-q", "--max-lenght", "64")
    yield Case("an unknown option", (("build", unknown),), "error")
    yield Case("an unknown command", (("bulid", ("in/a.jsonl",)),), "error")


def _outputs() -> Iterator[Case]:
    options: Options = {"sources": ["in/a.jsonl"], **BASE, "max_length": 64, "quiet": True}
    build = ("build", options)
    store = ("tokenize", {**options, "output": "store"})
    store[1].pop("max_length")
    pack = ("pack", {"sources": ["store"], "output": "out", "max_length": 64, "quiet": True})
    other = ("build", options | {"max_length": 32})
    yield Case("output, of other settings is there", (build, other), "error")
    yield Case(
        "output, pack of an output",
        (build, ("pack", pack[1] | {"sources": ["out"], "output": "again"})),
        "error",
    )
    yield Case("output, pack of nothing", (("pack", pack[1] | {"sources": ["gone"]}),), "error")
    for command in ("verify", "show", "export"):
        arguments = ("gone", "-o", "x", "--to", "parquet") if command == "export" else ("gone",)
        yield Case(f"output, {command} of nothing", ((command, arguments),), "error")
    damages = {"shard": {"out/data-*.arrow": 2000}, "manifest": {"out/manifest.json": 40}}
    for name, damage in damages.items():
        yield Case(
            f"output, verify of a damaged {name}",
            (build, ("verify", ("out",))),
            "error",
            damage=damage,
        )
    yield Case(
        "output, pack of a damaged store",
        (store, pack),
        "error",
        damage={"store/*/*.arrow": -6000},
    )
    yield Case(
        "output, show of a pack that is not there",
        (build, ("show", ("out", "--pack", "99999"))),
        "error",
    )
