"""Documents of turns through whole builds: ids, labels, accounts, commands, executors."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute import stages, window_files
from packprep.execute.pipeline import build_share
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.support.errors import InputError
from tests.helpers.command import run
from tests.helpers.corpus import SHARED, disk_fails, save_tokenizer, write_jsonl
from tests.helpers.planted import plant
from tests.helpers.zoo import Zoo

from .test_build import built, options, report_of, thoughtful
from .test_turn_documents import KIMI
from .test_turns import FORGETS

SMALL = FORGETS.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>")
LONG = pytest.mark.long
Found = dict[tuple[int, int], tuple[list[int], list[int]]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": SMALL}
    return str(save_tokenizer(tmp_path / "tokenizer", config=side))


def found_in(path: Path, split: str = "train") -> Found:
    """Ids and labels of each document, by row and turn; a document is in one piece."""
    found: Found = {}
    for pack in PackedShards(path, verify=True, split=split):
        assert pack.document_ids is not None
        assert pack.labels is not None
        turns = pack.columns["turn_ids"].tolist()
        bounds = zip(pack.cu_seqlens[:-1].tolist(), pack.cu_seqlens[1:].tolist(), strict=True)
        for row, turn, (start, stop) in zip(pack.document_ids.tolist(), turns, bounds, strict=True):
            assert (row, turn) not in found
            found[row, turn] = pack.tokens[start:stop].tolist(), pack.labels[start:stop].tolist()
    return found


@pytest.mark.parametrize(
    ("name", "source", "end"),
    [
        ("qwen3", None, "<|im_end|>"),
        pytest.param("qwen3", KIMI.replace("<|im_middle|>", "\n"), "<|im_end|>", marks=LONG),
        pytest.param("llama3_2", None, "<|eot_id|>", marks=LONG),
    ],
    ids=["qwen3", "kimi", "llama3"],
)
def test_every_thought_is_trained_once_in_the_ids_of_transformers(
    tmp_path: Path, name: str, source: str | None, end: str
) -> None:
    transformers = pytest.importorskip("transformers")
    folder, count = SHARED / "tokenizers" / name, 20
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


def test_the_account_sums_documents_and_counts_rows(tmp_path: Path, tokenizer: str) -> None:
    rows = [
        *thoughtful(3),
        {"messages": [{"role": "user", "content": "nobody answers"}]},
        {"messages": [*thoughtful(1)[0]["messages"], {"role": "user", "content": "and now?"}]},
        {"messages": []},
    ]
    source, out = write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out"
    command = ["build", source, "-o", out, "--tokenizer", tokenizer, "--messages-column"]
    command += ["messages", "--turns", "each:2", "--on-error", "skip"]
    result = run(*command)
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
    assert sorted(found_in(out)) == [(row, turn) for row in (0, 1, 2, 4) for turn in (3, 5)]
    verdict = verify(out, level="full")
    assert ([*verdict.findings], verdict.sampled) == ([], 6)
    lines = " ".join(result.out.split())
    assert "rows 6 (4 with a document per turn, 1 whole)" in lines
    assert "4 earlier turns left out by --turns each:N" in lines
    assert (
        "raise N of --turns each:N, or choose a template or renderer that writes it" in result.err
    )
    whole = run(*command[:7], "messages", "-o", tmp_path / "whole", "--on-error", "skip")
    assert "to train it, build with --turns auto, or choose a template" in whole.err


def test_a_row_in_which_one_document_cannot_be_encoded_is_skipped_whole(tmp_path: Path) -> None:
    """A tokenizer that makes a special token even of plain text: only one turn spells it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = save_tokenizer(tmp_path / "words", config={"bos_token": "<s>", "chat_template": SMALL})
    vocabulary = {word: number for number, word in enumerate(["<s>", "</s>", "[UNK]", "bad", "ok"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<s>", "</s>", "bad"])
    words.save(str(folder / "tokenizer.json"))
    rows = thoughtful(2)
    rows[1]["messages"][3]["content"] = "a bad one"
    more = {"turns": "each", "engine": "hf"}
    out = built(tmp_path, str(folder), rows, on_error="skip", **more)
    assert sorted(found_in(out)) == [(0, 1), (0, 3), (0, 5)]
    report = report_of(out)
    assert report["documents"]["skipped"] == {"special_tokens": 1}
    assert (report["documents"]["in"], report["documents"]["empty"]) == (4, 0)
    with pytest.raises(InputError, match="special token"):
        built(tmp_path, str(folder), rows, "stopped", **more)


def test_the_documents_of_a_row_are_held_out_and_drawn_together(
    tmp_path: Path, tokenizer: str, zoo: Zoo
) -> None:
    sides = []
    for split in ("train", "validation"):
        packs = PackedShards(zoo["turns"], split=split)
        sides.append({row for pack in packs for row in pack.columns["document_ids"].tolist()})
    assert sides[0] | sides[1] == set(range(60))
    assert not sides[0] & sides[1]
    assert sides[1]
    drawn: dict[str, Any] = {"turns": "each", "max_tokens": 6000, "weights": ("1",)}
    turns = Counter(row for row, _ in found_in(built(tmp_path, tokenizer, thoughtful(60), **drawn)))
    assert set(turns.values()) == {3}
    assert 0 < len(turns) < 60


def test_the_commands_name_the_turn(zoo: Zoo) -> None:
    """Row 2 has three turns."""
    turns = zoo["turns"]
    listed = json.loads(run("show", turns, "--find", "2", "--json").out)
    places = {(each["document"], each["turn"]) for each in listed}  # a long one is in pieces
    assert places == {(2, 1), (2, 3), (2, 5)}
    assert "turn" in run("show", turns, "--rows", "--pack", "0").out
    shown = run("show", turns, "--doc", "2").out
    assert [turn for turn in range(6) if f"row 2 message {turn}" in shown] == [1, 3, 5]
    listed = json.loads(run("show", zoo["chats"], "--find", "1", "--json").out)
    assert [each["turn"] for each in listed] == [None]


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


def stopped(config: dict[str, Any], place: Any, name: str, calls: int) -> Any:
    with disk_fails(place, name, calls):
        build(BuildConfig(**config))
    return build(BuildConfig(**config)).data


def in_tasks(config: dict[str, Any]) -> Any:
    for index in ("2", "0", "1"):
        build_share(BuildConfig(**config, part=f"{index}/3"))
    return build(BuildConfig(**config, part="merge")).data


def by_ray(config: dict[str, Any]) -> Any:
    pytest.importorskip("ray", reason="Ray is not installed: pip install packprep[ray]")
    return build(BuildConfig(**config | {"executor": "ray", "num_proc": 2})).data


@pytest.mark.filterwarnings("ignore")  # Ray warns of its own future
@pytest.mark.parametrize(
    "made",
    [
        partial(stopped, place=window_files, name="write_shard", calls=2),
        in_tasks,
        pytest.param(partial(stopped, place=stages, name="Windows", calls=0), marks=LONG),
        pytest.param(partial(stopped, place=stages, name="sign", calls=0), marks=LONG),
        pytest.param(by_ray, marks=LONG),
    ],
)
def test_however_they_are_built_the_bytes_are_the_same(
    tmp_path: Path, tokenizer: str, made: Any
) -> None:
    """Several units and windows of rows, some of which have documents for their turns."""
    rows = [each for number in range(60) for each in thoughtful(1, thinks=number % 3 > 0)]
    sizes: dict[str, Any] = {"unit_size": 3_000, "window": 9_000, "num_proc": 1}
    config = options(tmp_path, tokenizer, rows, turns="auto", holdout=0.2, **sizes)
    data = made(config | {"output": str(tmp_path / "made")})
    assert build(BuildConfig(**config)).data == data
    assert verify(config["output"], level="full").sound


def test_kept_tokens_and_appended_rows_keep_their_turns(tmp_path: Path, tokenizer: str) -> None:
    rows, kept = thoughtful(10), {"turns": "each", "keep_tokens": str(tmp_path / "store")}
    first = built(tmp_path, tokenizer, rows, **kept)
    longer = built(tmp_path, tokenizer, rows, "longer", max_length=1024, **kept)
    assert found_in(longer) == found_in(first)
    assert report_of(longer)["turns"] == report_of(first)["turns"]
    more = write_jsonl(tmp_path / "more.jsonl", thoughtful(5, thinks=False))
    added = options(tmp_path, tokenizer, rows, turns="each")
    build(BuildConfig(**added | {"append": True, "sources": (*added["sources"], str(more))}))
    assert sorted(found_in(first)) == [(row, turn) for row in range(15) for turn in (1, 3, 5)]
    assert [*verify(first, level="full").findings] == []
