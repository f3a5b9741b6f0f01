"""Files made to harm.

Paths that leave their folder, data that would be code, names that hold secrets, bombs.
"""

import json
import os
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest

from packprep.config.build_config import BuildConfig
from packprep.config.yaml_file import from_yaml
from packprep.engines.tokenizer import load_tokenizer
from packprep.loaders import PackedShards
from packprep.schemas import FormatError
from packprep.support.errors import ConfigError, InputError, PackprepError
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl

from .build import build, command_line, refused
from .kinds import whole

ROOT = Path(__file__).parents[2]


# Paths -------------------------------------------------------------------------------------


def saved(folder: Path) -> Path:
    """A dataset saved by `datasets`, and beside it a file that is none of its business."""
    datasets.Dataset.from_dict({"text": texts(40)}).save_to_disk(folder / "saved")
    shutil.copy(next((folder / "saved").glob("*.arrow")), folder / "outside.arrow")
    return folder / "saved"


BELOW = [f"{place}/outside.arrow" for place in ("..", "{folder}", "./..", "a/../..", "sub")]
NAMES = [*BELOW, "", "..", "\0", "link.arrow", 7, None, ["a"]]
# Of another shape.
STATES = ["[" * 100_000, "7", '{"_data_files": 7}', '{"_data_files": [7]}', "\x80"]


@pytest.mark.parametrize("state", [*({"filename": name} for name in NAMES), *STATES], ids=range(17))
def test_state_json_of_a_source_names_files_of_its_own_folder_only(
    tmp_path: Path, state: Any
) -> None:
    folder = saved(tmp_path)
    (folder / "link.arrow").symlink_to(tmp_path / "outside.arrow")
    (folder / "sub").symlink_to(tmp_path)
    if isinstance(state, dict):
        whole_state = json.loads((folder / "state.json").read_text())
        whole_state["_data_files"] = [state]
        state = json.dumps(whole_state).replace("{folder}", str(tmp_path))
    (folder / "state.json").write_text(state, "latin-1")
    assert refused(tmp_path, folder).startswith(str(folder / "state.json"))
    with pytest.raises(FormatError):
        PackedShards(folder)


def test_a_split_of_a_source_is_a_folder_of_its_own(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / "dict" / "train").symlink_to(tmp_path / "saved")
    assert "which is a link out of" in refused(tmp_path, tmp_path / "dict")
    outside = refused(tmp_path, tmp_path / "dict", "--split", "../saved")
    assert outside.endswith(f"name the folder of one: {tmp_path}/dict/train")


# Code in data ------------------------------------------------------------------------------

# What the rules S of ruff do not know: loaders that may unpickle, or run code of a repository.
CODE = r"(allow_pickle|weights_only|trust_remote_code)=(?!False|True)|allow_pickle=True"
CODE += r"|weights_only=False|trust_remote_code=True|(import|from) (dill|cloudpickle|joblib|shelve)"


def test_no_source_makes_code_of_data() -> None:
    folders = [ROOT / name for name in ("packprep", "schemas", "loaders", "scripts")]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    assert len(sources) > 50
    assert [str(path) for path in sources if re.search(CODE, path.read_text())] == []
    assert re.search(CODE, "np.load(f, allow_pickle=is_known)")


SIDES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
DATA_NAMES = "a.pkl a.pt a.npy a.jsonl a.json a.csv a.txt a.parquet a.arrow a.jsonl.gz"


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """File that a trap would create.

    It works: unpickled on purpose it does.
    """
    pickle.loads(pickle.dumps(Trap(tmp_path / "struck")))
    (tmp_path / "struck").rmdir()
    return tmp_path / "struck"


def test_a_pickle_is_never_opened_whatever_it_is_called(tmp_path: Path, trap: Path) -> None:
    content = pickle.dumps(Trap(trap))
    array = tmp_path / "object.npy"
    np.save(array, np.array([Trap(trap)], dtype=object), allow_pickle=True)
    for name in DATA_NAMES.split():
        for data in (content, array.read_bytes()):
            (tmp_path / name).write_bytes(data)
            assert refused(tmp_path, tmp_path / name).startswith(str(tmp_path / name))
    for name in SIDES:
        folder = save_tokenizer(tmp_path / "tok")
        (folder / name).write_bytes(content)
        with pytest.raises(InputError):
            load_tokenizer(folder)
        shutil.rmtree(folder)
    (tmp_path / "build.yaml").write_bytes(content)
    with pytest.raises(ConfigError):
        from_yaml(tmp_path / "build.yaml")
    for name in ("manifest.json", "state.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(content)
        with pytest.raises(FormatError):
            PackedShards(tmp_path / name)
    assert not trap.exists()


# YAML that grows ---------------------------------------------------------------------------


def laughs(levels: int, width: int) -> str:
    """Billion laughs: each level is `width` times the one before."""
    times = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(["a0: &a0 [x]", *times])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (laughs(12, 10), "line 2 has the alias *a0; write it out"),
        ("sources:\n" + laughs(12, 10).replace("a", "  - a"), "is not readable as YAML"),
        ("a: &a {x: 1}\nb: &b {<<: [*a, *a]}\n", "line 2 has the alias *a; write it out"),
        ("a: &a [*a]\n", "line 1 has the alias *a; write it out"),
        ("[" * 20_000, "it nests too deeply"),
        ("a: {" * 20_000, "it nests too deeply"),
        ("seed: " + "1" * 5_000, "line 1 has a number of 5,000 characters"),
        ("seed: 0x" + "f" * 5_000, "line 1 has a number of 5,002 characters"),
        ("seed: 1" + ":1" * 400_000, "line 1 has a number of 800,001 characters"),
        ("template-variables: {day: 2026-01-01}", "expected JSON such as"),
        ("seed: 2024-99-99", "month must be in 1..12"),
        ("seed: 1\nseed: 2", "duplicate key 'seed' in the table that starts on line 1"),
        ("seed: 1\n? [a]\n: 2", "unhashable key"),
        ("x" * 1_000_001, "it has more than 1,000,000 bytes"),
        ("\x00", "is not readable as YAML"),
    ],
    ids=range(15),
)
def test_a_yaml_file_that_grows_or_is_odd_is_a_sentence(
    tmp_path: Path, content: str, sentence: str
) -> None:
    (tmp_path / "build.yaml").write_text(content)
    with pytest.raises(ConfigError) as raised:
        BuildConfig(**from_yaml(tmp_path / "build.yaml"))
    assert sentence in str(raised.value)
    assert len(str(raised.value)) < 600


_LONG = [["x"] * 100_000, {"a": "b" * 100_000}, "y" * 100_000, 10**4000, -(16**5000)]
_KEYS = ("sources", "max_length", "strategy", "window", "columns", "holdout", "overwrite")
_SOURCES: list[dict[str, Any]] = [
    *({"weight": "1e-999999999"}, {"weight": 10**400}, {"epochs": 16**5000}, {"limit": 2**70}),
    *({"max_tokens": "9" * 5000}, {"epochs": ["x"] * 100_000}, {"label": ["x"] * 100_000}),
    {"x" * 100_000: 1},
]
HOSTILE: list[dict[str, Any]] = [
    *({key: value} for key in _KEYS[1:] for value in _LONG),
    *({"sources": value} for value in _LONG if not isinstance(value, list | str)),
    *({"sources": ({"path": "a.jsonl", **table},)} for table in _SOURCES),
]


@pytest.mark.parametrize("options", HOSTILE, ids=range(len(HOSTILE)))
def test_a_wrong_value_is_never_shown_at_full_length(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        BuildConfig(**options)
    assert len(str(raised.value)) < 600


# Tokenizers --------------------------------------------------------------------------------


_PROCESSORS: list[Any] = [
    *([], 7, "x", {"type": "BertProcessing"}, {"type": "BertProcessing", "cls": [], "sep": 1}),
    *({"type": "TemplateProcessing", "single": single} for single in (7, [7])),
    *({"type": "Sequence", "processors": processors} for processors in (7, [7])),
]
# Values of keys of a tokenizer.json: of one of its tokens, of its model, or of the table itself.
VALUES: dict[str, list[Any]] = {
    "id": [2**40, 2**32 - 1, 2**31, -1, "1", True, 1.5, None],
    "vocab": ["x", [1, 2], None, {}],
    "model": [[], None],
    "added_tokens": [7, "ab", [{}], [{"content": ["<s>"]}]],
    "post_processor": _PROCESSORS,
}


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The tiny tokenizer with a change."""
    path = save_tokenizer(folder) / "tokenizer.json"
    parsed = json.loads(path.read_text())
    change(parsed)
    path.write_text(json.dumps(parsed))
    return folder


@pytest.mark.parametrize(("key", "value"), [(key, each) for key in VALUES for each in VALUES[key]])
def test_a_tokenizer_of_another_shape_is_a_sentence(tmp_path: Path, key: str, value: Any) -> None:
    def change(parsed: dict[str, Any]) -> None:
        if value == {}:  # an empty vocabulary has no added tokens either
            parsed["added_tokens"] = []
        inside = {"id": parsed["added_tokens"][1:2], "vocab": [parsed["model"]]}
        for table in inside.get(key, [parsed]):
            table[key] = value

    folder = changed(tmp_path / "tok", change)
    words = r"is not a tokenizer\.json: .*; expected a file saved by"
    if key == "post_processor":  # it is asked where no other file names BOS and EOS
        (folder / "tokenizer_config.json").unlink()
        words = "tok"
    with pytest.raises(PackprepError, match=words):
        load_tokenizer(folder)


NO_TABLES = ("[" * 100_000, '{"model": ' * 100_000, "", "null", "[]", "7", "\xff", "9" * 5000)
NO_TOKENS: list[Any] = [7, [], True, {"content": 7}, {"content": []}]
NO_FILES = [
    *((name, content, "") for name in SIDES for content in NO_TABLES),
    *(
        (SIDES[1], json.dumps({"bos_token": token, "eos_token": "</s>"}), "says bos_token is .*; e")
        for token in NO_TOKENS
    ),
]


@pytest.mark.parametrize(("name", "content", "words"), NO_FILES, ids=range(len(NO_FILES)))
def test_a_tokenizer_file_without_a_table_or_with_a_token_that_is_no_text_is_a_sentence(
    tmp_path: Path, name: str, content: str, words: str
) -> None:
    folder = save_tokenizer(tmp_path / "tok")
    (folder / name).write_text(content, "latin-1")
    with pytest.raises(InputError, match=words or str(folder)):
        load_tokenizer(folder)


@pytest.mark.parametrize("place", ["pipe.json", "tok/tokenizer.json", "tok/tokenizer_config.json"])
def test_a_pipe_in_the_place_of_a_tokenizer_is_never_waited_for(tmp_path: Path, place: str) -> None:
    folder, path = save_tokenizer(tmp_path / "tok"), tmp_path / place
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(InputError, match="is not a regular file"):
        load_tokenizer(path if place == "pipe.json" else folder)


def test_a_regex_that_explodes_stops_with_a_sentence(tmp_path: Path) -> None:
    """The pattern (x+x+)+y on xxx... tries 2^n ways.

    The regex engine of `tokenizers` gives up after ten million.
    """

    def explode(parsed: dict[str, Any]) -> None:
        split = {"type": "Split", "behavior": "Isolated", "invert": False}
        split |= {"pattern": {"Regex": "(x+x+)+y"}}
        both = [split, parsed["pre_tokenizer"]]
        parsed["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": both}

    write_jsonl(tmp_path / "a.jsonl", ["good", "x" * 1000])
    save_tokenizer(tmp_path / "tokenizer")
    arguments = command_line(tmp_path, tmp_path / "a.jsonl")
    changed(tmp_path / "tokenizer", explode)
    settings: Any = {"capture_output": True, "text": True, "cwd": ROOT, "timeout": 100}
    done = subprocess.run(arguments, check=False, **settings)
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
    assert "cannot encode a text: Onig: Regex search error: retry" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


# Secrets -----------------------------------------------------------------------------------

SECRET = "swordfish42swordfish42swordfish42"


@pytest.mark.parametrize(
    "name",
    [
        *(f"https://user:{SECRET}@host/a.jsonl", f"s3://bucket/a.jsonl?X-Amz-Signature={SECRET}"),
        *(f"hf_{SECRET}", f"org/name?token={SECRET}", f"/gone/a.jsonl?sig={SECRET}"),
        f"gone?access_token={SECRET}.jsonl",
    ],
)
@pytest.mark.usefixtures("store")  # else one would ask for credentials elsewhere, and be remembered
def test_no_message_shows_a_secret_of_a_source_or_a_tokenizer(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(f"404 for {name}")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    good = write_jsonl(tmp_path / "a.jsonl", texts(40))
    for options in ([name], [good, "--tokenizer", name], [good, "-c", name]):
        result = run("build", "-o", tmp_path / "out", *options)
        assert result.code == 2
        assert SECRET not in result.out + result.err


def test_no_report_and_no_manifest_shows_a_secret(tmp_path: Path) -> None:
    path = tmp_path / f"a?sig={SECRET}" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(whole(".jsonl"))
    sources = [{"path": [str(path)], "epochs": 1}]
    tables = tmp_path / "build.yaml"
    tables.write_text(json.dumps({"sources": sources, "overwrite": True}))
    shown = ""
    for source in ([path, "--overwrite"], ["-c", tables]):
        for options in (["--json"], ["--dry-run"], ["--dry-run", "--json"]):
            result = build(tmp_path, *source, *options)
            assert result.code == 0, result
            shown += result.out + result.err
    shown += "".join(file.read_text() for file in (tmp_path / "out").glob("*.json"))
    assert SECRET not in shown
    assert "a?sig=***" in shown
