"""The documents as a site: `make site` (or `python -m tests.packaging.site`) builds it into build/site.

Documents are written for where they lie in the repository, and link to one another there. A site has a folder of pages,
so they are gathered first: the documents, what they link to of the repository's other Markdown, and its pictures, with
the links changed accordingly. A link to a file that is no page, such as a module, becomes its text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.packaging.documents import DOCS, ROOT

CONFIGURATION: Final = ROOT / "zensical.toml"
_PROJECT: Final[Mapping[str, Any]] = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]
#: Folders of the gathered pages and of the site, where the site is built.
PAGES: Final = str(_PROJECT["docs_dir"])
SITE: Final = str(_PROJECT["site_dir"])
#: The repository's other Markdown that is on the site -> its page.
OTHERS: Final = {
    ROOT / "djl_python" / "ARCHITECTURE.md": "architecture.md",
    ROOT / "djl_python" / "DECISIONS.md": "decisions.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "tests" / "bench" / "README.md": "measurements.md",
    # Not below "templates/", which the generator keeps for its own.
    **{path: f"examples/{path.parent.name}.md" for path in sorted((ROOT / "serving_templates").glob("*/README.md"))},
}
_FENCE: Final = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
_BLOCK: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_NESTED: Final = re.compile(r"^((?:  )+)- ", re.MULTILINE)  # whose items the generator wants twice as far in
_COLOR: Final = re.compile(r"\x1b\[[\d;]*m")
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def sources() -> dict[Path, str]:
    """Every Markdown file that becomes a page -> the page, relative to the site."""
    return {path: path.name for path in sorted(DOCS.glob("*.md"))} | OTHERS


def in_navigation(entries: Sequence[Mapping[str, Any]] = _PROJECT["nav"]) -> Iterator[str]:
    """The pages that the navigation names, in its order."""
    for entry in entries:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else in_navigation(target)


def gather(folder: Path, pages: Mapping[Path, str]) -> None:
    """Write pages, and the pictures that they show, into `folder`, which is emptied.

    Raises:
        ValueError: the navigation lacks a page, or names one that is not there.
    """
    if difference := sorted(set(pages.values()) ^ set(in_navigation())):
        raise ValueError(f"{CONFIGURATION.name}: nav and the documents differ in {', '.join(difference)}")
    shutil.rmtree(folder, ignore_errors=True)
    for source, page in pages.items():
        path = folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        text, pictures = as_page(source.read_text(encoding="utf-8"), source, pages)
        path.write_text(text, encoding="utf-8")
        for picture, name in pictures.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, folder / name)


def as_page(markdown: str, source: Path, pages: Mapping[Path, str]) -> tuple[str, dict[Path, str]]:
    """The text of a page, and the pictures that it shows -> their place on the site."""
    pictures: dict[Path, str] = {}

    def linked(match: re.Match[str]) -> str:
        shows, text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or "://" in path:
            return match[0]
        file = (source.parent / path).resolve()
        if shows:
            pictures[file] = f"pictures/{file.name}"
        page = pictures.get(file) or pages.get(file)
        if page is None:
            return text
        return f"{shows}[{text}]({os.path.relpath(page, Path(pages[source]).parent)}{hash_sign}{anchor})"

    parts = _BLOCK.split(markdown)
    for index, part in enumerate(parts):
        if part.startswith("```"):
            parts[index] = _FENCE.sub(r'```\1 title="\2"', part)
        else:
            parts[index] = _NESTED.sub(r"\1\1- ", _LINK.sub(linked, part))
    return "".join(parts), pictures


def generate(folder: Path) -> Path:
    """Build the site of what was gathered below `folder`, strictly; returns where it is.

    Raises:
        ValueError: a link leads nowhere, or the configuration is wrong.
    """
    configuration = shutil.copy(CONFIGURATION, folder)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(configuration)]
    built = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if built.returncode != 0:
        raise ValueError(_COLOR.sub("", built.stdout).partition("Traceback")[0])
    return folder / SITE


if __name__ == "__main__":
    try:
        gather(ROOT / "build" / PAGES, sources())
        print(generate(ROOT / "build"))
    except ValueError as error:
        sys.exit(str(error))
