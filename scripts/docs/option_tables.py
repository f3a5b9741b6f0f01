"""`python scripts/docs/option_tables.py` writes the tables of docs/options.md: those of a build."""

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_args

from packprep.config.options import GROUPS, BuildConfig

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
BEGIN, END = "<!-- options -->\n", "<!-- end of options -->"
MORE = "Only in YAML and Python"


def tables() -> str:
    """All tables, each below its heading, in Markdown."""
    specs = {spec.name: spec for spec in fields(BuildConfig)}
    groups = {title: [n for n in names if n in specs] for title, names in GROUPS.items()}
    shown = {name for names in groups.values() for name in names}
    groups[MORE] = [name for name in specs if name not in shown and name != "sources"]
    return "\n".join(
        f"## {title}\n\n| option | default | |\n|---|---|---|\n"
        + "".join(_row(specs[name], is_flag=title != MORE) for name in names)
        for title, names in groups.items()
        if names
    )


def _row(spec: "Field[Any]", *, is_flag: bool) -> str:
    """One option: its spelling with its value, default, and help."""
    help_text, _, stated = spec.metadata["help"].partition("  [")
    choices = "|".join(each for each in get_args(spec.type) if isinstance(each, str))
    value = spec.metadata["metavar"] or choices
    name = f"--{spec.name.replace('_', '-')}" if is_flag else f"{spec.name}:"
    short = f"{spec.metadata['short']}, " if "short" in spec.metadata else ""
    default = stated.removesuffix("]") or ("" if spec.default in (None, (), "") else spec.default)
    default = "off" if default is False else str(default)
    cells = (f"`{short}{name} {value}".strip() + "`", f"`{default}`" if default else "", help_text)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def with_tables(page: str) -> str:
    """The page with the tables between its marks."""
    return re.sub(rf"({BEGIN}).*?({END})", lambda m: m[1] + tables() + m[2], page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
