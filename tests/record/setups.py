"""Set-ups of the record: builds of the inputs of inputs.py, by options that both editions have.

Each has one window, so that packs are the same in both editions; those of kind "laws" have several,
or draw from weighted sources, and only totals and laws are recorded.
"""

from collections.abc import Iterator
from typing import Any

from .running import Case

Options = dict[str, Any]

BASE: Options = {"tokenizer": "in/tiny", "engine": "hf", "num_proc": 1, "output": "out"}
STRATEGIES = (
    *("best_fit", "first_fit", "knapsack", "optimal", "stream", "greedy", "first_fit_input"),
    *("wrapped", "balanced"),
)
IN_ORDER = ("stream", "greedy", "first_fit_input")
CHAT: Options = {"tokenizer": "in/chat", "max_length": 256}
IDS: Options = {"input_ids_column": "ids", "max_length": 64}
PIECES: Options = {"segments_column": "pieces", "max_length": 96}
PAIRS: Options = {"pair_columns": ["chosen", "rejected"], "max_length": 96}
TEMPLATES = ("llama3_2", "mistral_nemo", "qwen3")  # of tests/helpers/templates


def _build(name: str, *sources: Any, kind: str = "values", **options: Any) -> Case:
    """A build by the tiny tokenizer, into packs of 64 tokens, if options say nothing else."""
    stdin, needs = options.pop("stdin", None), options.pop("needs", "")
    given = {"sources": [_at(source) for source in sources], **BASE, "max_length": 64} | options
    given = {key: value for key, value in given.items() if value is not None}
    return Case(name, (("build", {**given, "quiet": True}),), kind, stdin=stdin, needs=needs)


def _at(source: Any) -> Any:
    """The path of an input, alone or in a table."""
    if isinstance(source, dict):
        return source | {"path": f"in/{source['path']}"}
    return source if source == "-" else f"in/{source}"


def _stored(name: str, *sources: Any, of_text: Options | None = None, **options: Any) -> Case:
    """`tokenize` into a store, then `pack`."""
    places = [_at(source) for source in sources]
    tokenize = {"sources": places, **BASE, "output": "store", "quiet": True} | (of_text or {})
    pack = {"sources": ["store"], "output": "out", "num_proc": 1, "max_length": 64, "quiet": True}
    return Case(name, (("tokenize", tokenize), ("pack", pack | options)))


def cases() -> list[Case]:
    """All set-ups, in the order of the record."""
    made = [
        *_strategies(),
        *_cutting(),
        *_orders(),
        *_filters(),
        *_text(),
        *_formats(),
        *_tokenizers(),
        *_chats(),
        *_ids(),
        *_pieces(),
        *_pairs(),
        *_token_files(),
        *_outputs(),
        *_stores(),
        *_running(),
        *_laws(),
    ]
    names = [case.name for case in made]
    assert len({*names}) == len(names), "two set-ups have one name"
    return made


def _strategies() -> Iterator[Case]:
    for name in STRATEGIES:
        yield _build(f"strategy {name}", "a.jsonl", strategy=name)
        yield _build(f"strategy {name}, short", "short.jsonl", strategy=name, seed=5)
        if name != "wrapped":
            yield _build(
                f"strategy {name}, truncate", "b.jsonl", strategy=name, overflow="truncate"
            )
    yield _build("strategy balanced:120", "short.jsonl", strategy="balanced:120")
    for name in IN_ORDER:
        yield _build(f"strategy {name}, shuffled", "a.jsonl", strategy=name, shuffle_documents=True)
        yield _build(f"strategy {name}, in order", "a.jsonl", strategy=name, order="input")
    yield _build("strategy wrapped, chats", "openai.jsonl", strategy="wrapped", **_openai())
    yield _build(
        "strategy wrapped, ids with labels", "labels.jsonl", strategy="wrapped", **_labels()
    )


def _openai(**options: Any) -> Options:
    return {**CHAT, "messages_column": "messages"} | options


def _labels(**options: Any) -> Options:
    return {**IDS, "labels_column": "labels:labels"} | options


def _cutting() -> Iterator[Case]:
    for overflow in ("split", "truncate", "truncate:left", "drop"):
        yield _build(f"overflow {overflow}", "a.jsonl", "long.jsonl", overflow=overflow)
        yield _build(
            f"overflow {overflow}, chats",
            "openai.jsonl",
            **_openai(overflow=overflow, max_length=80),
        )
        yield _build(f"overflow {overflow}, ids", "labels.jsonl", overflow=overflow, **_labels())
    yield _build(
        "overflow truncate:balanced",
        "openai.jsonl",
        **_openai(overflow="truncate:balanced", max_length=80),
    )
    yield _build(
        "overflow truncate:balanced, prompts",
        "prompts.jsonl",
        overflow=("truncate:balanced"),
        prompt_column="question",
        response_column="answer",
        max_length=24,
    )
    yield _build(
        "overflow truncate:balanced, pieces",
        "pieces.jsonl",
        **PIECES | {"overflow": "truncate:balanced", "max_length": 48},
    )
    yield _build("overflow error, all fit", "short.jsonl", overflow="error", max_length=512)
    for stride in (1, 16, 63):
        yield _build(f"stride {stride}", "a.jsonl", stride=stride)
    yield _build("stride, chats", "openai.jsonl", **_openai(stride=8, max_length=80))
    yield _build("stride, ids with labels", "labels.jsonl", stride=8, **_labels())
    yield _build("continuation bos", "long.jsonl", continuation_bos=True)
    yield _build("continuation bos and stride", "long.jsonl", continuation_bos=True, stride=9)
    yield _build(
        "continuation bos, ids", "labels.jsonl", bos="<s>", **_labels(continuation_bos=True)
    )
    yield _build("packs of two tokens", "c.jsonl", max_length=2)
    yield _build("long packs", "a.jsonl", max_length=4096)


def _orders() -> Iterator[Case]:
    for order in ("shuffle", "input", "length", "balanced", "balanced:4", "balanced:3:10,1"):
        yield _build(f"order {order}", "a.jsonl", "b.jsonl", order=order)
    yield _build("order length:2, figures of two ranks", "b.jsonl", order="length:2")
    for seed in (1, 2**31):
        yield _build(f"seed {seed}", "a.jsonl", seed=seed)
        yield _build(f"seed {seed}, knapsack", "a.jsonl", seed=seed, strategy="knapsack")
    yield _build("order balanced, chats", "openai.jsonl", **_openai(order="balanced:2", seed=3))


def _filters() -> Iterator[Case]:
    yield _build("min document tokens", "a.jsonl", min_document_tokens=12)
    yield _build("max document tokens", "a.jsonl", max_document_tokens=100)
    yield _build(
        "document tokens from and to", "a.jsonl", min_document_tokens=5, max_document_tokens=90
    )
    yield _build("min document tokens 0", "a.jsonl", min_document_tokens=0)
    yield _build("max document tokens, chats", "openai.jsonl", **_openai(max_document_tokens=120))
    yield _build("min pack tokens", "a.jsonl", min_pack_tokens=60)
    yield _build("min pack tokens, greedy", "b.jsonl", min_pack_tokens=40, strategy="greedy")
    for most in (1, 2, 3):
        yield _build(f"max segments {most}", "short.jsonl", max_segments_per_pack=most)
    yield _build("max segments, stream", "short.jsonl", max_segments_per_pack=2, strategy="stream")
    for multiple in (2, 16):
        yield _build(f"pad to multiple of {multiple}", "a.jsonl", pad_segment_to_multiple=multiple)
    yield _build("pad to multiple, chats", "openai.jsonl", **_openai(pad_segment_to_multiple=8))
    for whole in ("7", "7:fill"):
        yield _build(f"multiple {whole}", "a.jsonl", packs_multiple_of=whole)
        yield _build(f"multiple {whole}, held out", "a.jsonl", packs_multiple_of=whole, holdout=0.2)
    yield _build("multiple 4:fill, chats", "openai.jsonl", **_openai(packs_multiple_of="4:fill"))
    for share in (0.1, 0.5):
        yield _build(f"holdout {share}", "a.jsonl", holdout=share)
    yield _build("holdout of two sources", "a.jsonl", "b.jsonl", holdout="5%")
    yield _build("holdout with a seed", "a.jsonl", holdout=0.2, seed=7)
    yield _build("holdout, chats", "openai.jsonl", **_openai(holdout=0.2))
    for strategy in ("best_fit", "stream", "knapsack"):
        yield _build(f"groups, {strategy}", "rows.jsonl", group_column="group", strategy=strategy)
    yield _build("groups of numbers", "rows.parquet", group_column="stars", seed=2)
    yield _build("groups of booleans", "rows.parquet", group_column="good", order="length")
    yield _build(
        "groups, held out together",
        "rows.jsonl",
        group_column="group",
        group_prefix="group",
        holdout=0.3,
    )


def _text() -> Iterator[Case]:
    yield _build("text", "a.jsonl")
    yield _build("text of three sources", "a.jsonl", "b.jsonl", "c.jsonl")
    yield _build("the same source twice", "c.jsonl", "c.jsonl")
    yield _build("text of another column", "rows.jsonl", text_column="body")
    yield _build("text by a template", "rows.jsonl", text_template="# {title}\n\n{body}\n")
    yield _build("text by a template, Parquet", "rows.parquet", text_template="{title}: {text}")
    for end, token in (("bos", "none"), ("eos", "none"), ("bos", "</s>"), ("eos", "<s>")):
        yield _build(f"{end} {token}", "a.jsonl", **{end: token})
    yield _build("no ends", "a.jsonl", bos="none", eos="none")
    yield _build("no ends, split", "long.jsonl", bos="none", eos="none", stride=5)
    yield _build(
        "ends of a tokenizer that names none", "a.jsonl", tokenizer="in/bare", bos="<s>", eos="</s>"
    )
    yield _build("truncate at", "footers.jsonl", truncate_at="\\n\\n# Notes \\d+")
    yield _build("special tokens spelled in text", "marked.jsonl")
    yield _build("skip bad rows", "some_bad.jsonl", on_error="skip")
    for limit in (2, 50, 150):
        yield _build(f"limit {limit}", "a.jsonl", "b.jsonl", limit=limit)
    yield _build("limit of a source", {"path": "a.jsonl", "limit": 30}, "b.jsonl", limit=100)
    for sample in ("document", "paragraph", "line"):
        yield _build(f"a book by {sample}", "book.txt", sample_by=sample)
    yield _build(
        "sources with options of their own",
        {"path": "rows.jsonl", "text_column": "body"},
        {"path": "book.txt", "sample_by": "paragraph"},
        "a.jsonl",
    )
    yield _build(
        "a template of a source",
        {"path": "rows.jsonl", "text_template": "{title} {body}"},
        "b.jsonl",
    )
    for number in ("float32", "float64", "int8", "int32", "int64", "uint8", "int16"):
        column = "quality" if number.startswith("float") else "stars"
        yield _build(f"carry {number}", "rows.parquet", carry=[f"{column}:{number}"])
    yield _build("carry three", "rows.jsonl", carry=["quality", "stars", "good"], stride=4)
    yield _build("carry and group", "rows.parquet", carry=["id"], group_column="group")
    yield _build("carry, held out", "rows.parquet", carry=["quality", "stars"], holdout=0.25)


def _formats() -> Iterator[Case]:
    names = ("rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst", "rows.json", "rows.parquet")
    for name in (*names, "rows.arrow", "rows.csv", "rows.tsv", "rows.csv.gz", "saved"):
        yield _build(f"format {name}", name)
    yield _build("a glob", "parts/part-*.jsonl.gz")
    yield _build("a folder", "parts")
    yield _build("a glob of two files", "parts/part-0000[12].jsonl.gz")
    yield _build("a folder in a folder", "mixed")
    yield _build("a glob at any depth", "mixed/**/*.jsonl")
    yield _build("a folder and files", "parts", "a.jsonl", "rows.parquet")
    yield _build("standard input", "-", stdin="in/a.jsonl")
    yield _build("standard input, chats", "-", stdin="in/openai.jsonl", **_openai())
    yield _build("several row groups, limit", "rows.parquet", limit=45)


def _tokenizers() -> Iterator[Case]:
    names = ("bert_base_uncased", "deepseek", "gemma2", "gpt2", "llama3_2", "mistral_nemo")
    for name in (*names, "o200k", "qwen3", "t5_small"):
        yield _build(f"tokenizer {name}", "scripts.jsonl", "a.jsonl", tokenizer=f"in/{name}")
    yield _build(
        "tokenizer as a file", "a.jsonl", tokenizer="in/gpt2/tokenizer.json", eos="<|endoftext|>"
    )
    yield _build(
        "tokenizer of tiktoken", "scripts.jsonl", tokenizer="in/tiktoken", needs="tiktoken"
    )
    yield _build(
        "tokenizer by the engine that is fastest",
        "scripts.jsonl",
        tokenizer="in/qwen3",
        engine="auto",
    )


def _chats() -> Iterator[Case]:
    yield _build("chats of OpenAI", "openai.jsonl", **_openai())
    yield _build("chats in Parquet", "openai.parquet", **_openai())
    yield _build("chats as JSON text", "json_text.jsonl", **_openai())
    yield _build("chats of ShareGPT", "sharegpt.jsonl", **_openai(messages_column="conversations"))
    yield _build("chats of ShareGPT, auto", "sharegpt.jsonl", **_openai(messages_column="auto"))
    yield _build("chats, auto", "openai.jsonl", **_openai(messages_column="auto"))
    yield _build("prompts of messages, auto", "prompts.jsonl", **_openai(messages_column="auto"))
    asked = {"prompt_column": "question", "response_column": "answer"}
    yield _build("prompts", "prompts.jsonl", **CHAT | asked)
    yield _build("prompts without a template", "prompts.jsonl", **asked)
    yield _build(
        "prompts without a template, all trained", "prompts.jsonl", train_on="all", **asked
    )
    yield _build("content in parts, with weights", "parts.jsonl", **_openai())
    for train_on in ("assistant", "last-turn", "all"):
        yield _build(f"train on {train_on}", "openai.jsonl", **_openai(train_on=train_on))
        yield _build(
            f"train on {train_on}, thoughts", "thoughts.jsonl", **_openai(train_on=train_on)
        )
    yield _build("train false", "untrained.jsonl", **_openai())
    yield _build("train false, last turn", "untrained.jsonl", **_openai(train_on="last-turn"))
    for turns in ("each", "auto"):
        yield _build(f"turns {turns}", "thoughts.jsonl", **_openai(turns=turns))
        yield _build(f"turns {turns}, no thoughts", "openai.jsonl", **_openai(turns=turns))
        yield _build(
            f"turns {turns}, held out", "thoughts.jsonl", **_openai(turns=turns, holdout=0.2)
        )
    yield _build("turns each, train false", "untrained.jsonl", **_openai(turns="each"))
    yield _build("turns each, split", "thoughts.jsonl", **_openai(turns="each", max_length=48))
    yield _build(
        "a template with generation", "openai.jsonl", **_openai(chat_template="in/keeps.jinja")
    )
    yield _build(
        "a template with generation, train false",
        "untrained.jsonl",
        **_openai(chat_template="in/keeps.jinja"),
    )
    yield _build(
        "a template in Python", "openai.jsonl", **_openai(renderer="in/renderer.py:render")
    )
    for name in TEMPLATES:
        own: Options = {"tokenizer": f"in/{name}", "max_length": 512}
        own |= {"template_variables": '{"date_string": "01 Jan 2026"}'} if "llama" in name else {}
        yield _build(f"template {name}", "openai.jsonl", **_openai(**own))
        yield _build(f"template {name}, thoughts", "thoughts.jsonl", **_openai(**own))
        yield _build(f"template {name}, tools", "tools.jsonl", **_openai(**own))
        yield _build(
            f"template {name}, last turn", "openai.jsonl", **_openai(**own, train_on="last-turn")
        )
        yield _build(
            f"template {name}, turns auto", "thoughts.jsonl", **_openai(**own, turns="auto")
        )
    yield _build("chats, carry", "openai.parquet", **_openai(carry=["score", "id"]))
    yield _build("chats, limit", "openai.jsonl", **_openai(limit=11))


def _ids() -> Iterator[Case]:
    yield _build("ids", "ids.jsonl", **IDS)
    yield _build("ids in Parquet", "ids.parquet", **IDS)
    yield _build("ids with labels", "labels.jsonl", **_labels())
    yield _build("ids with labels, found", "labels.parquet", **_labels(labels_column="labels"))
    yield _build("ids with a mask", "mask.jsonl", **_labels(labels_column="mask:mask"))
    yield _build("ids with a mask, found", "mask.jsonl", **_labels(labels_column="mask"))
    yield _build(
        "ids, size of the vocabulary", "ids.jsonl", **IDS | {"tokenizer": None, "vocab_size": 400}
    )
    yield _build("ids with ends", "ids.jsonl", **IDS | {"bos": "<s>", "eos": "</s>"})
    yield _build("ids with labels and ends", "labels.jsonl", **_labels(bos="<s>", eos="</s>"))
    for kind in ("eos", "eos:1", "bos:1"):
        yield _build(
            f"packed ids, split at {kind}", "packed_ids.jsonl", **IDS | {"boundaries": kind}
        )
    yield _build(
        "packed ids, held out", "packed_ids.jsonl", **IDS | {"boundaries": "eos", "holdout": 0.3}
    )
    yield _build(
        "ids, carry for each token", "labels.jsonl", **_labels(carry=["weights:float32", "reward"])
    )
    yield _build(
        "ids, carry for each token, Parquet",
        "labels.parquet",
        **_labels(carry=["weights:float64", "reward:float32"], stride=8),
    )
    yield _build(
        "ids, padded", "labels.jsonl", **_labels(pad_segment_to_multiple=8, carry=["weights"])
    )
    other = {"path": "pairs_ids.jsonl", "input_ids_column": "chosen"}
    masked = _labels(labels_column="mask:mask")
    yield _build("ids in Parquet with a mask", "mask.parquet", **masked, holdout=0.2)
    yield _build("ids of two columns", "ids.jsonl", other, **IDS)


def _pieces() -> Iterator[Case]:
    yield _build("pieces", "pieces.jsonl", **PIECES)
    yield _build("pieces, split", "pieces.jsonl", **PIECES | {"max_length": 24, "stride": 4})
    yield _build("pieces, carry", "pieces.jsonl", **PIECES | {"carry": ["reward"]})
    yield _build("pieces, held out", "pieces.jsonl", **PIECES | {"holdout": 0.2, "seed": 4})


def _pairs() -> Iterator[Case]:
    prompted = {**PAIRS, "prompt_column": "prompt"}
    yield _build("pairs", "pairs.jsonl", **prompted)
    yield _build("pairs without a prompt", "pairs.jsonl", **PAIRS)
    yield _build(
        "pairs without a prompt, chats",
        "pairs_chats.jsonl",
        **PAIRS | CHAT | {"messages_column": "auto"},
    )
    yield _build("pairs with a template", "pairs.jsonl", **prompted | CHAT)
    yield _build("pairs of ids", "pairs_ids.jsonl", **PAIRS | {"input_ids_column": "auto"})
    yield _build(
        "pairs of ids with masks",
        "pairs_ids.jsonl",
        **PAIRS | {"input_ids_column": "auto", "labels_column": "chosen_mask,rejected_mask:mask"},
    )
    yield _build("pairs of pieces", "pairs_pieces.jsonl", **PAIRS | {"segments_column": "auto"})
    for overflow in ("truncate", "truncate:left", "drop"):
        yield _build(
            f"pairs, {overflow}",
            "pairs.jsonl",
            **prompted | {"max_length": 24, "overflow": overflow},
        )
    for strategy in ("first_fit", "stream", "greedy", "balanced", "optimal"):
        yield _build(f"pairs, {strategy}", "pairs.jsonl", **prompted | {"strategy": strategy})
    yield _build("pairs, held out", "pairs.jsonl", **prompted | {"holdout": 0.2})
    yield _build("pairs, padded", "pairs.jsonl", **prompted | {"pad_segment_to_multiple": 4})
    yield _build(
        "pairs, two segments a pack",
        "pairs.jsonl",
        **prompted | {"max_segments_per_pack": 2, "order": "balanced:2"},
    )


def _token_files() -> Iterator[Case]:
    files = ("megatron/x.bin", "megatron32/x.bin", "npy/x.npy", "raw_npy/x.npy", "dolma/x.npy")
    for name in (*files, "datatrove/x.ds"):
        yield _build(f"token file {name}", name)
    yield _build("token file of datatrove with a mask", "datatrove_loss/x.ds")
    yield _build(
        "token file by the size of the vocabulary", "megatron/x.bin", tokenizer=None, vocab_size=500
    )
    yield _build("token file with ends", "npy/x.npy", eos="</s>", bos="<s>")
    yield _build("token file, held out", "megatron/x.bin", holdout=0.2, strategy="stream")
    yield Case(
        "pack of a token file",
        (
            (
                "pack",
                {
                    "sources": ["in/megatron/x.bin"],
                    "tokenizer": "in/tiny",
                    "max_length": 64,
                    "output": "out",
                    "num_proc": 1,
                    "quiet": True,
                },
            ),
        ),
    )


def _outputs() -> Iterator[Case]:
    for columns in ([], ["position_ids"], ["document_ids", "document_starts"]):
        yield _build(f"columns {', '.join(columns) or 'none'}", "a.jsonl", columns=columns)
    yield _build("columns of hf", "a.jsonl", names="hf")
    yield _build("columns of hf, chats", "openai.jsonl", **_openai(names="hf"))
    yield _build("columns of hf, labels", "labels.jsonl", names="hf", **_labels())
    yield _build("columns of hf, held out", "a.jsonl", names="hf", holdout=0.2)
    for kind in ("int32", "auto"):
        yield _build(f"token type {kind}", "a.jsonl", token_type=kind)
        yield _build(f"token type {kind}, chats", "openai.jsonl", **_openai(token_type=kind))
    yield _build("small shards", "a.jsonl", shard_size=20_000)
    yield _build("small shards, held out", "a.jsonl", shard_size=10_000, holdout=0.3)
    plan: Options = {"materialize": "index", "keep_tokens": "store"}
    yield _build("plan", "a.jsonl", **plan)
    yield _build("plan, held out", "a.jsonl", "b.jsonl", holdout=0.2, stride=8, **plan)
    yield _build("plan, chats", "openai.jsonl", **_openai(**plan))
    yield _build(
        "plan, ids with labels and carry",
        "labels.jsonl",
        **_labels(carry=["weights", "reward"], **plan),
    )
    yield _build("plan, pairs", "pairs.jsonl", **PAIRS | {"prompt_column": "prompt"} | plan)
    yield _build("plan, continuation bos", "long.jsonl", continuation_bos=True, **plan)
    yield _build("plan, wrapped", "a.jsonl", strategy="wrapped", **plan)
    for strategy in ("best_fit", "stream"):
        yield _build(
            f"epoch 1, {strategy}",
            "a.jsonl",
            kind="epoch",
            epochs=2,
            materialize="shards",
            strategy=strategy,
        )


def _stores() -> Iterator[Case]:
    for name in STRATEGIES:
        yield _stored(f"pack {name}", "a.jsonl", "b.jsonl", strategy=name)
    yield _stored("pack, truncate and holdout", "a.jsonl", overflow="truncate", holdout=0.2)
    yield _stored("pack, long packs", "a.jsonl", max_length=300, order="length")
    chats = {"tokenizer": "in/chat", "messages_column": "messages"}
    yield _stored("pack, chats", "openai.jsonl", of_text=chats, max_length=200)
    yield _stored(
        "pack, turns",
        "thoughts.jsonl",
        of_text={**chats, "turns": "each"},
        max_length=200,
        holdout=0.2,
    )
    labels = {"input_ids_column": "ids", "labels_column": "mask:mask", "carry": ["reward"]}
    yield _stored("pack, ids", "mask.jsonl", of_text=labels, stride=4)
    pairs = {"prompt_column": "prompt", "pair_columns": ["chosen", "rejected"]}
    yield _stored("pack, pairs", "pairs.jsonl", of_text=pairs, overflow="truncate")
    yield _stored("pack, groups", "rows.jsonl", of_text={"group_column": "group"})
    yield _stored("pack, a plan", "a.jsonl", materialize="index", strategy="knapsack")
    again: Options = {"sources": ["in/a.jsonl"], **BASE, "keep_tokens": "store", "quiet": True}
    first = again | {"max_length": 32, "output": "before"}
    then = again | {"max_length": 100, "strategy": "first_fit"}
    yield Case("a second build of one store", (("build", first), ("build", then)))
    replaced = again | {"max_length": 50, "overwrite": True}
    yield Case("overwrite", (("build", again | {"max_length": 64}), ("build", replaced)))
    pack = {"sources": ["store"], "output": "out", "max_length": 64, "num_proc": 1, "quiet": True}
    yield Case("pack of the store of a build", (("build", first), ("pack", pack)))


def _running() -> Iterator[Case]:
    yield _build("local executor, two processes", "a.jsonl", executor="local", num_proc=2)
    yield _build("little memory", "a.jsonl", max_memory="2GB")
    yield _build("a dry run", "a.jsonl", dry_run=True)
    yield _build("a file that is included", "a.jsonl", include="in/base.yaml", max_length=None)
    yield _build("a variable with a default", "a.jsonl", seed="${RECORD_SEED:9}")
    tokenize = {"sources": ["in/a.jsonl", "in/b.jsonl"], **BASE, "output": "store", "quiet": True}
    pack = {"sources": ["store"], "output": "out", "max_length": 64, "num_proc": 1, "quiet": True}
    parts = ("0/2", "1/2", "merge")
    yield Case(
        "parts of tokenize and pack",
        (
            *(("tokenize", tokenize | {"part": part}) for part in parts),
            *(("pack", pack | {"part": part}) for part in parts),
        ),
    )


def _laws() -> Iterator[Case]:
    def mix(name: str, *sources: Any, **options: Any) -> Case:
        return _build(f"mix, {name}", *sources, kind="laws", **options)

    yield mix("two weights", "a.jsonl", "b.jsonl", weights=[70, 30])
    yield mix("three weights", "a.jsonl", "b.jsonl", "c.jsonl", weights=[50, 30, 20])
    yield mix("a size", "a.jsonl", "b.jsonl", weights=[1, 1], max_tokens=6000)
    yield mix("more than once", "a.jsonl", "c.jsonl", weights=[1, 1], max_epochs=3)
    yield mix(
        "weights of tables",
        {"path": "a.jsonl", "weight": 2, "max_epochs": 2},
        {"path": "b.jsonl", "weight": 1, "max_epochs": 2},
        max_epochs=None,
    )
    yield mix("held out", "a.jsonl", "b.jsonl", weights=[60, 40], holdout=0.2)
    yield mix("chats", "openai.jsonl", "thoughts.jsonl", weights=[1, 2], **_openai())
    pack = {"sources": ["store"], "output": "out", "max_length": 64, "num_proc": 1, "quiet": True}
    tokenize = {"sources": ["in/a.jsonl", "in/b.jsonl"], **BASE, "output": "store", "quiet": True}
    weighted = pack | {"weights": [1, 2], "max_tokens": 5000}
    yield Case("mix, pack of a store", (("tokenize", tokenize), ("pack", weighted)), "laws")
    small: Options = {"window": 12_000, "kind": "laws"}
    yield _build("windows", "a.jsonl", "b.jsonl", **small)
    yield _build("windows, held out", "a.jsonl", "b.jsonl", holdout=0.2, **small)
    yield _build(
        "windows, stream in order", "a.jsonl", "b.jsonl", strategy="stream", order="input", **small
    )
    yield _build("windows, truncate", "a.jsonl", "long.jsonl", overflow="truncate", **small)
