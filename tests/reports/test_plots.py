import re
import sys
from pathlib import Path
from typing import Any

import pytest

from packprep.reports.facts import gather
from packprep.reports.plots import write_plots
from packprep.support.errors import ConfigError
from tests.helpers.tiny_shards import GOLDEN

from .test_facts import built


def test_every_plot_is_a_png_and_an_svg_and_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    facts = gather(built(tmp_path))
    written = write_plots(facts, tmp_path / "plots")
    assert sorted(written) == sorted((tmp_path / "plots").iterdir())
    assert {path.suffix for path in written} == {".png", ".svg"}
    assert {path.stem for path in written} == {
        "tokens",
        "document_lengths",
        "documents_per_pack",
        "fill",
        "attention_cost",
        "strategies",
    }
    again = write_plots(facts, tmp_path / "again")
    for first, second in zip(written, again, strict=True):
        content = first.read_bytes()
        assert content.startswith(b"\x89PNG" if first.suffix == ".png" else b"<?xml")
        assert first.suffix == ".png" or content == second.read_bytes()


def test_plots_draw_the_bars_and_ticks_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed").Figure
    facts = gather(built(tmp_path))
    drawn: dict[str, tuple[list[float], list[str], str]] = {}

    counts: list[str] = []

    def note(self: Any, path: Path, **_: object) -> None:
        self.canvas.draw()
        axes = self.axes[0]
        if path.stem != "strategies":
            along = axes.xaxis if path.stem == "tokens" else axes.yaxis
            counts.extend(text.get_text() for text in along.get_ticklabels())
        heights = [float(bar.get_height()) for bar in axes.patches]
        drawn[path.stem] = (
            heights,
            [text.get_text() for text in axes.get_xticklabels()],
            axes.get_title(),
        )

    monkeypatch.setattr(figure, "savefig", note)
    write_plots(facts, tmp_path / "plots")
    for name, shown in zip(
        ("document_lengths", "documents_per_pack", "fill", "attention_cost"),
        facts.histograms(),
        strict=True,
    ):
        assert drawn[name] == (
            [each.count for each in shown.bins],
            [text for _, text in shown.ticks],
            shown.title,
        )
    assert len(counts) > 20
    assert all(re.fullmatch(r"\d{1,3}(,\d{3})*", text) for text in counts), counts


def test_without_matplotlib_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ConfigError, match=r"plots need matplotlib.*pip install 'packprep\[plots\]'"
    ):
        write_plots(gather(GOLDEN / "v1-example"), tmp_path / "plots")
    assert not (tmp_path / "plots").exists()
