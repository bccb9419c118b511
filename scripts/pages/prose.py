"""Check the pages' prose: length of sentences and pages, first words, headings; `make lint` runs it.

python -m scripts.pages.prose [PAGE ...]    # every page that git tracks, unless some are named
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LONGEST, MEAN = 30, 22
"""Words of a sentence: the most, and the most in the mean of a page."""
TOTAL = 31_000
PAGE = 1_500
PAGE_WORDS = {"README.md": 900}
"""Words of a page, where it is not `PAGE`; code and tables count, as `wc -w` counts them."""
GENERATED, ARCHIVE = "doc/reference/", "archive/"
OPENINGS = re.compile(r"(What|Of|Not|So|Where)\b")
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2`*$", re.MULTILINE | re.DOTALL)
HTML = re.compile(r"<!--.*?-->|<[^>]+>", re.DOTALL)
END = re.compile(r"(?<=[.!?:;。！？])[\"”)*_]*\s+(?=[\"“(*_`\[A-Z0-9])")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")


class Finding(NamedTuple):
    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def paragraphs(page: str) -> list[str]:
    """Return paragraphs and list items as one line each, without code blocks, tables, headings and HTML."""
    text = HTML.sub(" ", FENCE.sub("\n", page))
    found: list[str] = []
    open_ = False
    for line in text.splitlines():
        if not line.strip() or line.startswith(("|", "#", "---", ">", ":::")):
            open_ = False
        elif open_ and not ITEM.match(line):
            found[-1] += " " + line.strip()
        else:
            found.append(ITEM.sub("", line).strip())
            open_ = True
    return found


def sentences(page: str) -> list[str]:
    """Return the sentences of a page's prose; a semicolon or a colon before a capital letter ends one too."""
    plain = (re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in paragraphs(page))
    return [part.strip() for each in plain for part in END.split(each) if re.search(r"\w", part)]


def words(text: str) -> int:
    return len(text.split())


def findings_of(name: str, page: str) -> list[Finding]:
    """Return what is wrong with one page."""
    parts = sentences(page)
    found = [
        Finding(name, f"a sentence has {words(each)} words, expected {LONGEST} at most: {each}")
        for each in parts
        if words(each) > LONGEST
    ]
    found += [
        Finding(name, f"a sentence begins with {match[0]}: {each}")
        for each in parts
        if (match := OPENINGS.match(each.lstrip('*_"“(`')))
    ]
    mean = sum(map(words, parts)) / max(len(parts), 1)
    if mean > MEAN:
        found.append(Finding(name, f"a sentence has {mean:.1f} words in the mean, expected {MEAN} at most"))
    if words(page) > (most := PAGE_WORDS.get(name, PAGE)):
        found.append(Finding(name, f"it has {words(page):,} words, expected {most:,} at most"))
    return found


def tracked_pages() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.splitlines() if not name.startswith((GENERATED, ARCHIVE))]


def main(names: list[str]) -> int:
    pages = {name: (ROOT / name).read_text("utf-8") for name in names or tracked_pages()}
    found = [each for name, page in pages.items() for each in findings_of(name, page)]
    total = sum(map(words, pages.values()))
    if total > TOTAL:
        found.append(Finding("all pages", f"they have {total:,} words, expected {TOTAL:,} at most"))
    print(*found, f"{len(pages)} pages, {total:,} words", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
