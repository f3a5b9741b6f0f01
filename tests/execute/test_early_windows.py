"""Windows that are known early are written beside tokenization.

They are those that would be written later.
"""

import threading
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute import tasks
from packprep.execute.early_windows import EarlyWindows
from packprep.execute.window_files import Windows, windows_at_once
from packprep.packing.api import pack_lengths
from packprep.tokens.store import TokenFile
from packprep.tokens.token_files import BASE_MEMORY, seal
from packprep.windows.specs import WindowSpec, list_windows
from tests.helpers.corpus import build_options, texts


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """A build of two files in 11 units and 4 windows, in input order."""
    files = {f"{number}.jsonl": texts(120, seed=number) for number in range(2)}
    sizes = {"unit_size": 5_000, "window": 15_000, "num_proc": 2}
    return build_options(tmp_path, files, engine="hf", order="input", **sizes)


def in_one_thread(corpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The data of the manifest that no work beside other work makes."""
    alone = {"num_proc": 1, "output": corpus["output"] + "-plain"}
    return build(BuildConfig(**corpus | more | alone)).data


def waiting(monkeypatch: pytest.MonkeyPatch, windows: int) -> None:
    """Let tokenization wait, once it has done all units, until so many windows are written."""
    written = threading.Semaphore(0)
    write = Windows.write

    def counted(*arguments: Any) -> Any:
        done = write(*arguments)
        written.release()
        return done

    def after(*arguments: Any) -> None:
        for _ in range(windows):
            assert written.acquire(timeout=600), "no window is written beside tokenization"
        seal(*arguments)

    monkeypatch.setattr(Windows, "write", counted)
    monkeypatch.setattr(tasks, "seal", after)


@pytest.mark.parametrize("more", [{}, {"holdout": 0.3}, {"max_tokens": 12_000}])
def test_windows_in_input_order_are_written_before_all_is_tokenized(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    plain = in_one_thread(corpus, **more)
    waiting(monkeypatch, 1 if "max_tokens" in more else 3)  # the last one is whole at the end
    assert build(BuildConfig(**corpus | more)).data == plain


@pytest.mark.long
def test_a_build_that_was_stopped_keeps_the_windows_it_wrote_early(
    corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = in_one_thread(corpus)
    with monkeypatch.context() as patch:
        waiting(patch, 2)
        sealing = vars(tasks)["seal"]

        def stopped(*arguments: Any) -> None:
            sealing(*arguments)
            raise OSError(5, "Input/output error")

        patch.setattr(tasks, "seal", stopped)
        with pytest.raises(OSError, match="Input/output"):
            build(BuildConfig(**corpus))
    planned: list[int] = []
    real = Windows._plan

    def plan(windows: Windows, spec: WindowSpec[TokenFile]) -> Any:
        planned.append(spec.number)
        return real(windows, spec)

    monkeypatch.setattr(Windows, "_plan", plan)
    assert build(BuildConfig(**corpus)).data == plain
    assert not {0, 1} & {*planned}
    assert 3 in planned


def begun(corpus: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[str]:
    """Windows that a build has begun before all its units were tokenized."""
    found: list[str] = []
    real = EarlyWindows.result

    def result(early: EarlyWindows[Any], spec: WindowSpec[TokenFile]) -> Any:
        found.extend(early._made)
        return real(early, spec)

    monkeypatch.setattr(EarlyWindows, "result", result)
    planner = more.pop("planner", None)
    build(BuildConfig(**corpus | more), planner=planner)
    return sorted(set(found))


@pytest.mark.parametrize(
    ("more", "windows"),
    [
        ({}, [0, 1, 2]),
        ({"order": "shuffle"}, []),
        ({"packs_multiple_of": 2}, []),
        ({"weights": "1,2"}, []),
        ({"num_proc": 1}, []),
        ({"window": "1GB"}, []),
        ({"max_memory": BASE_MEMORY + 40_000}, []),
        ({"planner": lambda lengths, room: pack_lengths(lengths, room, "greedy")}, []),
    ],
)
def test_all_but_the_last_begin_early_unless_units_may_change_them_or_cores_or_memory_lack(
    corpus: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    more: dict[str, Any],
    windows: list[int],
) -> None:
    names = [f"train-{number:05d}" for number in windows]
    assert begun(corpus, monkeypatch, **more) == names


def test_memory_bounds_how_many_windows_are_made_at_once(corpus: dict[str, Any]) -> None:
    sizes: Any = {"text_bytes": 1, "tokens": 1, "verified": 0, "bytes": 1, "xxh3": ""}
    rest: Any = {"parts": (), "cut": {}, "left_out": {}}
    file = TokenFile(unit=0, slice=0, first_document=0, documents=1_000_000, **sizes, **rest)
    at_once = []
    for memory in ("0.7GB", "1.1GB", "64GB"):
        config = BuildConfig(**corpus | {"max_memory": memory, "num_proc": 8})
        specs = list_windows([file], config.pack_rules(), config.writing)
        at_once.append(windows_at_once(specs, config.running))
    assert at_once == [1, 3, 8]  # 160 MB each, beside 600 MB
