"""Documents of turns through whole builds: ids, labels, accounts, commands, executors."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest

from packprep import BuildConfig, build, pack_dataset
from packprep.execute import stages, window_files
from packprep.execute.pipeline import build_share
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import SHARED, disk_fails, save_tokenizer, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.planted import plant
from tests.helpers.zoo import Zoo

from .test_left_out import FORGETS
from .test_turn_documents import KIMI, LLAMA

MESSAGES: dict[str, Any] = {"messages_column": "messages", "max_length": 512, "engine": "hf"}
SMALL = FORGETS.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>")
MODES = ("row", "auto", "each")
Found = dict[tuple[int, int], tuple[list[int], list[int]]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": SMALL}
    return str(save_tokenizer(tmp_path / "tokenizer", config=side))


def thoughtful(rows: int, *, inline: bool = False, thinks: bool = True) -> list[dict[str, Any]]:
    """Rows of three turns, each with a thought of its own."""
    made = []
    for row in range(rows):
        messages = []
        for turn in range(3):
            thought, answer = f"thought {row} {turn} of it", f"answer {turn}"
            reply = {"role": "assistant", "content": answer}
            if inline and thinks:
                reply["content"] = f"<think>{thought}</think>{answer}"
            elif thinks:
                reply["reasoning_content"] = thought
            messages += [{"role": "user", "content": f"question {row}"}, reply]
        made.append({"messages": messages})
    return made


def options(tmp_path: Path, tokenizer: str, rows: Any, name: str, **more: Any) -> dict[str, Any]:
    source = write_jsonl(tmp_path / f"{name}.jsonl", rows)
    inputs = {"sources": (str(source),), "output": str(tmp_path / name), "tokenizer": tokenizer}
    return inputs | MESSAGES | more


def built(tmp_path: Path, tokenizer: str, rows: Any, name: str = "out", **more: Any) -> Path:
    build(BuildConfig(**options(tmp_path, tokenizer, rows, name, **more)))
    return tmp_path / name


def found_in(path: Path) -> Found:
    """Ids and labels of each document, by row and turn; a document is in one piece."""
    found: Found = {}
    for pack in PackedShards(path, verify=True):
        assert pack.document_ids is not None
        assert pack.labels is not None
        turns = pack.columns["turn_ids"].tolist()
        bounds = zip(pack.cu_seqlens[:-1].tolist(), pack.cu_seqlens[1:].tolist(), strict=True)
        for row, turn, (start, stop) in zip(pack.document_ids.tolist(), turns, bounds, strict=True):
            assert (row, turn) not in found
            found[row, turn] = pack.tokens[start:stop].tolist(), pack.labels[start:stop].tolist()
    return found


def report_of(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((path / "report.json").read_bytes())
    return report


@pytest.mark.parametrize(
    ("name", "source", "end"),
    [
        ("qwen3", None, "<|im_end|>"),
        ("qwen3", KIMI.replace("<|im_middle|>", "\n"), "<|im_end|>"),
        ("llama3_2", None, "<|eot_id|>"),
    ],
    ids=["qwen3", "kimi", "llama3"],
)
def test_every_thought_is_trained_once_in_the_ids_of_transformers(
    tmp_path: Path, name: str, source: str | None, end: str
) -> None:
    transformers = pytest.importorskip("transformers")
    folder, count = SHARED / "tokenizers" / name, 60
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    rows = thoughtful(count, inline=name == "llama3_2")
    more: dict[str, Any] = {"turns": "each"}
    if source is not None:
        (tmp_path / "chat.jinja").write_text(source)
        more["chat_template"] = str(tmp_path / "chat.jinja")
        theirs.chat_template = source
    out = built(tmp_path, str(folder), rows, **more)
    found = found_in(out)
    assert sorted(found) == [(row, turn) for row in range(count) for turn in (1, 3, 5)]
    trained_texts = []
    for (row, turn), (ids, labels) in found.items():
        messages = rows[row]["messages"]
        asked = {"tokenize": False, "date_string": "26 Jul 2024"}
        text = theirs.apply_chat_template(messages[: turn + 1], **asked)
        prompt = theirs.apply_chat_template(messages[:turn], add_generation_prompt=True, **asked)
        assert text.startswith(prompt)
        encoding = theirs.backend_tokenizer.encode(text, add_special_tokens=False)
        assert ids == encoding.ids
        stop = text.rindex(end) + len(end)
        assert labels == [
            token if first < stop and last > len(prompt) else -100
            for token, (first, last) in zip(ids, encoding.offsets, strict=True)
        ]
        trained_texts.append(theirs.decode([label for label in labels if label != -100]))
    thoughts = Counter("\n".join(trained_texts).split("thought ")[1:])
    assert (len(thoughts), sum(thoughts.values())) == (3 * count, 3 * count)
    report = report_of(out)
    assert report["left_out"]["characters"] == 0
    assert report["documents"]["in"] == 3 * count
    assert report["turns"]["rows"] == report["turns"]["split_rows"] == count


@pytest.mark.parametrize("appends", [False, True])
def test_auto_writes_the_bytes_of_row_where_nothing_is_lost(
    tmp_path: Path, tokenizer: str, appends: bool
) -> None:
    """Rows without a thought, and a template that only appends."""
    rows = thoughtful(20, inline=appends, thinks=appends)
    more = {}
    if appends:
        signs = {"<|im_start|>": "<s>", "<|im_middle|>": ":", "<|im_end|>": "</s>"}
        source = LLAMA
        for sign, ours in signs.items():
            source = source.replace(sign, ours)
        (tmp_path / "llama.jinja").write_text(source)
        more["chat_template"] = str(tmp_path / "llama.jinja")
    row, auto = (built(tmp_path, tokenizer, rows, mode, turns=mode, **more) for mode in MODES[:2])
    assert report_of(row)["sha256"] == report_of(auto)["sha256"]
    assert {turn for _, turn in found_in(auto)} == {-1}
    assert report_of(auto)["turns"]["same_text_rows"] == (0 if appends else 20)


def test_auto_writes_the_documents_of_each_where_text_is_lost(
    tmp_path: Path, tokenizer: str
) -> None:
    rows = [*thoughtful(5), *thoughtful(5, thinks=False)]
    whole, auto, each = (
        found_in(built(tmp_path, tokenizer, rows, mode, turns=mode)) for mode in MODES
    )
    assert auto == {key: each[key] for key in each if key[0] < 5} | {
        key: whole[key] for key in whole if key[0] >= 5
    }


def test_the_account_sums_documents_and_counts_rows(tmp_path: Path, tokenizer: str) -> None:
    rows = [
        *thoughtful(3),
        {"messages": [{"role": "user", "content": "nobody answers"}]},
        {"messages": [*thoughtful(1)[0]["messages"], {"role": "user", "content": "and now?"}]},
        {"messages": []},
    ]
    turns_of: dict[str, Any] = {"turns": "each", "max_turns": 2, "on_error": "skip"}
    out = built(tmp_path, tokenizer, rows, **turns_of)
    report = report_of(out)
    turns = {
        "rows": 6,
        "documents": 10,
        "split_rows": 4,
        "same_text_rows": 0,
        "without_turn": 1,
        "at_text": 0,
        "earlier": 4,
        "behind_rows": 1,
        "behind_characters": len("and now?"),
    }
    assert report["turns"] == report["sources"][0]["turns"] == turns
    documents = {"in": 10, "empty": 0, "skipped": {"no_messages": 1}}
    documents["dropped"] = {"few_loss_tokens": 1}
    assert {name: report["documents"][name] for name in documents} == documents
    assert report["left_out"]["documents"] == 4, "the first turn of each has no document"
    found = found_in(out)
    assert sorted(found) == [(row, turn) for row in (0, 1, 2, 4) for turn in (3, 5)]
    verdict = verify(out, level="full")
    assert ([*verdict.findings], verdict.sampled) == ([], 6)
    command = ["build", tmp_path / "out.jsonl", "-o", tmp_path / "again", "--tokenizer", tokenizer]
    command += ["--messages-column", "messages", "--turns", "each"]
    command += ["--max-turns", "2", "--on-error", "skip"]
    result = run(*command)
    lines = " ".join(result.out.split())
    assert "rows 6 (4 with a document per turn, 1 whole)" in lines
    assert "1 rows without a turn of the assistant" in lines
    assert "4 earlier turns left out by --max-turns" in lines
    assert "behind last turn 8 characters in 1 rows" in lines
    assert "to train it, raise --max-turns, or choose a template that writes it" in result.err


def test_a_row_in_which_one_document_cannot_be_encoded_is_skipped_whole(tmp_path: Path) -> None:
    """A tokenizer that makes a special token even of plain text: only one turn spells it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = save_tokenizer(tmp_path / "words", config={"bos_token": "<s>", "chat_template": SMALL})
    vocabulary = {word: number for number, word in enumerate(["<s>", "</s>", "[UNK]", "bad", "ok"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<s>", "</s>", "bad"])
    words.save(str(folder / "tokenizer.json"))
    good, poor = thoughtful(2)
    poor["messages"][3]["content"] = "a bad one"
    out = built(tmp_path, str(folder), [good, poor], turns="each", on_error="skip")
    assert sorted(found_in(out)) == [(0, 1), (0, 3), (0, 5)]
    report = report_of(out)
    assert report["documents"]["skipped"] == {"special_tokens": 1}
    assert (report["documents"]["in"], report["documents"]["empty"]) == (4, 0)
    with pytest.raises(InputError, match="special token"):
        built(tmp_path, str(folder), [good, poor], "stopped", turns="each")


def test_the_documents_of_a_row_are_held_out_drawn_and_carried_together(
    tmp_path: Path, tokenizer: str
) -> None:
    rows = [row | {"reward": float(number)} for number, row in enumerate(thoughtful(60))]
    out = built(tmp_path, tokenizer, rows, turns="each", holdout=0.3, carry=("reward",))
    sides = []
    for split in ("train", "validation"):
        packs = PackedShards(out, split=split)
        sides.append({row for pack in packs for row in pack.columns["document_ids"].tolist()})
        for pack in packs:
            assert pack.columns["reward"].tolist() == pack.columns["document_ids"].tolist()
    assert sides[0] | sides[1] == set(range(60))
    assert not sides[0] & sides[1]
    assert sides[1]
    mixed = built(tmp_path, tokenizer, rows, "mix", turns="each", max_tokens=6000, weights=("1",))
    turns = Counter(row for row, _ in found_in(mixed))
    assert set(turns.values()) == {3}
    assert 0 < len(turns) < 60
    assert verify(mixed, level="full").sound


@pytest.mark.parametrize("overflow", ["split", "truncate", "drop"])
def test_long_documents_of_turns_are_cut_and_verified(
    tmp_path: Path, tokenizer: str, overflow: str
) -> None:
    limits: dict[str, Any] = {"turns": "each", "max_length": 100}
    out = built(tmp_path, tokenizer, thoughtful(8), overflow=overflow, **limits)
    assert [*verify(out, level="full").findings] == []
    if overflow == "drop":
        with pytest.raises(InputError, match=r"row 0 message \d has .* but a pack holds 100"):
            built(tmp_path, tokenizer, thoughtful(8), "no", overflow="error", **limits)


def test_the_commands_name_the_turn(zoo: Zoo) -> None:
    """Row 2 has three turns, row 0 of chats is whole and begins with a system message."""
    turns, chats = zoo["turns"], zoo["chats"]
    listed = json.loads(run("show", turns, "--find", "2", "--json").out)
    places = {(each["document"], each["turn"]) for each in listed}  # a long one is in pieces
    assert places == {(2, 1), (2, 3), (2, 5)}
    assert "turn" in run("show", turns, "--rows", "--pack", "0").out
    shown = run("show", turns, "--doc", "2").out
    assert [turn for turn in range(6) if f"row 2 message {turn}" in shown] == [1, 3, 5]
    listed = json.loads(run("show", chats, "--find", "1", "--json").out)
    assert [each["turn"] for each in listed] == [None]
    assert "message" not in run("show", chats, "--doc", "1").out


@pytest.mark.parametrize(
    ("turn", "sentence"),
    [
        (1, "message 1 is in the packs more than once"),
        (2, "has no document of message 2"),
        (-1, "has no document of the whole row"),
    ],
)
def test_verify_finds_repeated_and_wrong_turns(
    tmp_path: Path, zoo: Zoo, turn: int, sentence: str
) -> None:
    out = zoo.copy("turns", tmp_path)
    rows: list[int] = []

    def edit(packs: Any) -> None:
        for pack in packs:
            for number, message in enumerate(pack["turn_ids"]):
                row, start = pack["document_ids"][number], pack["document_starts"][number]
                if message == 3 and start == 0 and not rows:
                    rows.append(row)
                    pack["turn_ids"][number] = turn

    plant(out, edit)
    found = "\n".join(finding.what for finding in verify(out, level="full").findings)
    assert f"row {rows[0]} {sentence}" in found
    assert turn == 1 or f"row {rows[0]} message 3 is in no pack" in found


def test_a_row_of_turns_counts_as_documents_in_weights_of_losses(zoo: Zoo) -> None:
    packs = PackedShards(zoo["turns"], split="train")
    documents = sum(len(pack.columns["turn_ids"]) for pack in packs)
    loader = PackedLoader(packs, 1, shuffle=False, loss_weights="document")
    total = sum(float(batch.loss_weights.sum()) for batch in loader)
    assert total == pytest.approx(documents), "turns, not rows"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"train_on": "last-turn"}, ("turns each", "train_on last-turn")),
        ({"messages_column": None}, ("turns each", "--messages-column")),
        (
            {"pair_columns": ("a", "b"), "overflow": "drop", "messages_column": "auto"},
            ("turns each", "pair_columns"),
        ),
        ({"turns": "row", "max_turns": 2}, ("max_turns", "--turns each or auto")),
        ({"max_turns": 0}, ("max_turns is 0", "at least 1")),
    ],
)
def test_options_that_have_no_meaning_with_turns_are_refused(
    more: dict[str, Any], words: tuple[str, ...]
) -> None:
    with refused(ConfigError, *words):
        BuildConfig(**MESSAGES | {"turns": "each"} | more)


def test_a_tokenizer_without_a_template_has_no_turns(tmp_path: Path) -> None:
    bare = str(save_tokenizer(tmp_path / "bare"))
    rows = [{"q": "cat?", "a": "on the mat"}]
    columns: dict[str, Any] = {"prompt_column": "q", "response_column": "a"}
    columns["messages_column"] = None
    with pytest.raises(ConfigError, match="turns each needs a chat template, and the tokenizer"):
        built(tmp_path, bare, rows, turns="each", **columns)
    out = built(tmp_path, bare, rows, "row", **columns)
    assert sorted(found_in(out)) == [(0, -1)]


def test_an_unstable_row_is_named(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "count.jinja").write_text("{{ messages | length }}" + SMALL)
    more = {"turns": "auto", "chat_template": str(tmp_path / "count.jinja")}
    with refused(InputError, "out.jsonl row 0 (line 1)", "the messages before message 1"):
        built(tmp_path, tokenizer, thoughtful(1), **more)


def test_text_left_out_of_whole_rows_asks_for_auto(tmp_path: Path, tokenizer: str) -> None:
    write_jsonl(tmp_path / "a.jsonl", thoughtful(2))
    build_it = ["build", tmp_path / "a.jsonl", "--tokenizer", tokenizer]
    build_it += ["--messages-column", "messages"]
    row = run(*build_it, "-o", tmp_path / "row")
    assert "to train it, build with --turns auto, or choose a template that writes it" in row.err
    auto = run(*build_it, "-o", tmp_path / "auto", "--turns", "auto")
    assert "a model is not trained on it" not in auto.err


def test_pack_dataset_gives_what_build_writes(tmp_path: Path, tokenizer: str) -> None:
    rows = thoughtful(10)
    more = {"turns": "each", "order": "input"}
    out = built(tmp_path, tokenizer, rows, **more)
    packed = pack_dataset(datasets.Dataset.from_list(rows), tokenizer, **MESSAGES, **more)
    assert packed.to_list() == datasets.load_from_disk(str(out)).to_list()


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: str) -> dict[str, Any]:
    """Several units and windows of rows, some of which have documents for their turns."""
    rows = [each for number in range(60) for each in thoughtful(1, thinks=number % 3 > 0)]
    sizes = {"unit_size": 3_000, "window": 9_000, "num_proc": 1}
    return options(tmp_path, tokenizer, rows, "out", turns="auto", holdout=0.2, **sizes)


def undisturbed(corpus: dict[str, Any]) -> dict[str, Any]:
    data = build(BuildConfig(**corpus | {"output": corpus["output"] + "-local"})).data
    assert verify(corpus["output"] + "-local", level="full").sound
    return data


@pytest.mark.parametrize(
    ("place", "name", "calls"),
    [
        pytest.param(stages, "Windows", 0, marks=pytest.mark.long),
        (window_files, "write_shard", 2),
        pytest.param(stages, "sign", 0, marks=pytest.mark.long),
    ],
)
def test_a_stopped_build_goes_on_to_the_same_bytes(
    corpus: dict[str, Any], place: Any, name: str, calls: int
) -> None:
    with disk_fails(place, name, calls):
        build(BuildConfig(**corpus))
    assert build(BuildConfig(**corpus)).data == undisturbed(corpus)


def test_tasks_of_an_array_make_the_same_bytes(corpus: dict[str, Any]) -> None:
    tasks = {"executor": "array", "num_tasks": 3}
    for index in ("2", "0", "1"):
        build_share(BuildConfig(**corpus | tasks, task_index=index))
    merged = build(BuildConfig(**corpus | tasks, task_index="merge"))
    assert merged.data == undisturbed(corpus)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # Ray warns of its own future
def test_ray_makes_the_same_bytes(corpus: dict[str, Any]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install packprep[ray]")
    made = build(BuildConfig(**corpus | {"executor": "ray", "num_proc": 2}))
    assert made.data == undisturbed(corpus)


def test_kept_tokens_and_appended_rows_keep_their_turns(tmp_path: Path, tokenizer: str) -> None:
    rows, store = thoughtful(10), {"keep_tokens": str(tmp_path / "store")}
    first = built(tmp_path, tokenizer, rows, turns="each", **store)
    again = options(tmp_path, tokenizer, rows, "out", turns="each", **store)
    build(BuildConfig(**again | {"output": str(tmp_path / "longer"), "max_length": 1024}))
    assert found_in(tmp_path / "longer") == found_in(first)
    more = write_jsonl(tmp_path / "more.jsonl", thoughtful(5, thinks=False))
    added = options(tmp_path, tokenizer, rows, "out", turns="each")
    build(BuildConfig(**added | {"append": True, "sources": (*added["sources"], str(more))}))
    assert sorted(found_in(first)) == [(row, turn) for row in range(15) for turn in (1, 3, 5)]
    assert [*verify(first, level="full").findings] == []
