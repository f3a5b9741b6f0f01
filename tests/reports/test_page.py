import base64
import hashlib
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from packprep.reports.facts import Facts, gather
from packprep.reports.page import render, write_page
from packprep.schemas.report import Report, ReportSource
from tests.helpers.chromium import Chromium, find_chromium

from .test_facts import built

CSS = (Path(__file__).parents[2] / "packprep" / "reports" / "page.css").read_text()
WIDTHS = (390, 1280)
RIGHT, BOX = "getBoundingClientRect().right", "getBoundingClientRect()"


def rows_of(selector: str) -> str:
    """JavaScript for the elements of this selector, grouped by their height on the page."""
    return (
        f"Object.values(Object.groupBy([...document.querySelectorAll('{selector}')], "
        f"e => e.{BOX}.top))"
    )


QUESTIONS = {
    "overflow": "document.documentElement.scrollWidth - innerWidth",
    # What reaches past the window, but in a box that scrolls by itself.
    "outside": "[...document.body.querySelectorAll('*')].filter(e => !e.closest('.scroll')"
    f" && e.{RIGHT} > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))",
    "overlapping labels": "[...document.querySelectorAll('.label')]"
    f".map(e => [e.textContent, e.{BOX}]).filter(([_, r]) => r.width)"
    ".flatMap(([a, r], i, all) => all.slice(i + 1).filter(([b, s]) => r.left < s.right"
    " && s.left < r.right && r.top < s.bottom - 1 && s.top < r.bottom - 1)"
    ".map(([b, s]) => a + ' / ' + b))",
    "rows of cards that are not full": f"{rows_of('.card')}.filter(row => Math.abs("
    f"row.at(-1).{RIGHT} - row[0].parentElement.{RIGHT}) > 0.5).map(row =>"
    " row.at(-1).textContent)",
    "ticks outside or overlapping": "[...document.querySelectorAll('figure svg')].flatMap(svg => {"
    f" const box = svg.{BOX}; let end = box.left - 1;"
    f" return [...svg.querySelectorAll('.tick')].filter(e => {{ const r = e.{BOX};"
    " const bad = r.left < end || r.right > box.right + 1; end = r.right; return bad; })"
    ".map(e => e.textContent)})",
    "smallest text": "Math.min(...[...document.querySelectorAll('text, p, td, th, dd, dt, span, "
    f"li')].filter(e => e.{BOX}.width).map(e => parseFloat(getComputedStyle(e).fontSize) *"
    " (e.getScreenCTM ? e.getScreenCTM().a : 1)))",
}


class Tags(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def text_of(facts: Facts) -> str:
    return Tags(render(facts)).text


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return gather(built(tmp_path_factory.mktemp("page"), files=10))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if (executable := find_chromium()) is None:
        pytest.skip("no Chromium is on PATH or named by CHROMIUM")
    with Chromium(executable, tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


def test_the_page_says_the_figures_of_the_report(facts: Facts) -> None:
    text, report = text_of(facts), facts.report
    for figure in (report["packs"], report["tokens_lost"], report["documents"]["in"]):
        assert f"{figure:,}" in text
    assert f"{report['utilization']:.2%}" in text
    assert all(outcome.strategy in text for outcome in facts.outcomes)
    assert facts.manifest.identity in text
    above = f"{report['gap']:,} more than the proven minimum"
    assert f"{report['bound']:,}" in text or above in text


def test_nothing_is_loaded_and_only_this_style_is_allowed(facts: Facts) -> None:
    page = render(facts)
    tags = Tags(page).tags
    [policy] = [a["content"] for _, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    loading = {"script", "link", "img", "iframe", "object", "use", "image", "base", "form"}
    assert loading.isdisjoint(tag for tag, _ in tags)
    keys = {key for _, attributes in tags for key in attributes}
    assert keys.isdisjoint(("src", "href", "style", "xlink:href"))
    assert not re.search(r"url\(|@import|https?:", page)


def test_every_picture_has_a_name_and_every_id_is_there_once(facts: Facts) -> None:
    tags = Tags(render(facts)).tags
    pictures = [
        attributes for tag, attributes in tags if tag == "svg" and "aria-hidden" not in attributes
    ]
    ids = [str(attributes["id"]) for _, attributes in tags if "id" in attributes]
    assert len(pictures) > 20
    assert all(
        a["role"] == "img" and ("aria-label" in a or a["aria-labelledby"] in ids) for a in pictures
    )
    assert len(ids) == len(set(ids))
    assert all(a["aria-labelledby"] in ids for _, a in tags if "aria-labelledby" in a)
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_names_that_look_like_html_or_a_template_are_text(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "' onclick='x",
        "</style></title><svg onload=x>",
    ]
    hostile += ["{{ 7*7 }}", "{% raw %}", "a&amp;b", "\u202egnp", "x" * 300, "\udce9"]
    sources: list[ReportSource] = [
        {**source, "name": name}
        for source, name in zip(facts.report["sources"], hostile, strict=True)
    ]
    report: Report = {**facts.report, "sources": sources}
    plain = Tags(render(facts))
    page = render(Facts(facts.output, facts.manifest, report, facts.measured, facts.outcomes))
    found = Tags(page)
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    keys = {key for _, attributes in plain.tags for key in attributes}
    assert {key for _, attributes in found.tags for key in attributes} == keys
    assert all(name in found.text for name in hostile[:7])
    page.encode()


WHOLE: dict[str, Any] = {
    "min_document_tokens": 1,
    "max_document_tokens": None,
    "stride": 0,
    "packs_multiple_of": 1,
    "pad_segment_to_multiple": 1,
}
"""Settings by which no token is lost, repeated or added."""


def test_the_page_names_what_needs_attention(tmp_path: Path, facts: Facts) -> None:
    text = text_of(gather(built(tmp_path, overflow="truncate", stride=0)))
    assert "of the tokens are in no pack:" in text
    assert "Use --overflow split to keep long documents." in text
    assert "packs hold only padding" in text
    (tmp_path / "b").mkdir()
    text = text_of(gather(built(tmp_path / "b", strategy="greedy", **WHOLE)))
    assert "Nothing is lost: every token of the input is in a pack." in text
    assert re.search(r"needs fewer packs: [\d,]+ with strategy \w+, [\d,]+ fewer", text)


def test_one_source_without_loss_is_a_line_of_text_in_place_of_a_chart(tmp_path: Path) -> None:
    facts = gather(built(tmp_path, files=1, **WHOLE))
    page, tokens = render(facts), facts.report["tokens"]["tokens_in"]
    assert f"<p>All {tokens:,} tokens of part0.jsonl are in the packs.</p>" in page
    assert "ribbon" not in page.split("</style>")[1]
    (tmp_path / "lossy").mkdir()
    assert 'class="ribbon' in render(gather(built(tmp_path / "lossy", files=1)))


def test_tokens_that_a_mix_leaves_aside_are_not_lost(tmp_path: Path) -> None:
    mixed = gather(built(tmp_path, **WHOLE, weights=(1, 9)))
    tokens, text = mixed.report["tokens"], text_of(mixed)
    aside = tokens["dropped"]["not_drawn"]
    wanted = tokens["tokens_in"] - aside
    assert f"0 of {wanted:,} are in no pack" in text
    drawn = f"Nothing is lost: all {wanted:,} tokens drawn for the mix are in the packs"
    assert f"{drawn}; {aside:,} others were not drawn." in text
    kinds = {link.outcome: link.kind for link in mixed.links()}
    assert kinds == {"in the packs": "kept", "not drawn for the mix": "undrawn"}


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_pictures_stand_out_from_their_ground(theme: str) -> None:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", blocks[["light", "dark"].index(theme)]))

    def contrast(one: str, other: str) -> float:
        high, low = sorted((luminance(colors[one]), luminance(colors[other])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for ground in ("page", "panel"):
        assert all(
            contrast(name, ground) >= 4.5
            for name in ("text", "soft", "good", "warn", "bad", "mark")
        )
        assert all(contrast(name, ground) >= 3 for name in ["empty", *(f"c{n}" for n in range(8))])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_it_whole_on_a_phone_and_a_desktop_and_loads_nothing(
    browser: Chromium, facts: Facts, tmp_path: Path, width: int, dark: bool
) -> None:
    page = write_page(facts, tmp_path / "report.html")
    seen = browser.visit(page.as_uri(), width=width, dark=dark, questions=QUESTIONS)
    assert (seen.said, seen.requests) == ([], [page.as_uri()])
    answers = seen.answers
    assert answers["overflow"] == 0
    for faults in ("outside", "overlapping labels", "ticks outside or overlapping"):
        assert answers[faults] == []
    assert answers["rows of cards that are not full"] == []
    assert answers["smallest text"] >= 10
