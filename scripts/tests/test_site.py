"""The site is built without a warning, every link and anchor in it exists, and it reads on a phone and in the dark."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from scripts.tests.browser import CHROMIUM, MISSING, browser
from scripts.tests.pages import ROOT

pytest.importorskip("myst_parser", reason="the site needs `bash scripts/setup.sh --extras`")


class Read(HTMLParser):
    """What a page links to, the ids that it has, what it loads, and the paths that are titles of texts."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links, self.ids, self.loaded, self.paths = [], set(), [], []
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids.add(given.get("id"))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "abbr":
            self.paths.append(given["title"])
        elif tag in ("img", "link", "script", "source"):
            self.loaded += [given[name] for name in ("src", "href", "srcset") if name in given]


def build(source: Path, target: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(target / "trees")]
    return subprocess.run([*command, str(source), str(target / "site")], capture_output=True, text=True, timeout=250)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("built")
    done = build(ROOT / "doc", target)
    assert (done.returncode, done.stderr) == (0, "")
    return target / "site"


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Read]:
    return {file: Read(file) for file in sorted(site.rglob("*.html"))}


def test_every_link_and_anchor_inside_exists_and_nothing_is_loaded_from_elsewhere(pages):
    dead = []
    for file, page in pages.items():
        for link in [*page.links, *page.loaded]:
            scheme, host, path, _, anchor = urlsplit(link)
            if (scheme or host) and link in page.links:
                continue
            target = (file.parent / unquote(path)).resolve() if path else file
            found = not (scheme or host) and target.is_file()
            if not found or (anchor and target in pages and anchor != "" and unquote(anchor) not in pages[target].ids):
                dead.append(f"{file.name}: {link}")
    assert dead == []


def test_files_of_the_repository_that_links_name_are_there(pages):
    assert [path for page in pages.values() for path in page.paths if not (ROOT / path).exists()] == []


def test_every_page_stands_in_the_navigation(site, pages):
    sources = [file.relative_to(ROOT / "doc").with_suffix(".html") for file in (ROOT / "doc").rglob("*.md")]
    linked = {link.partition("#")[0] for link in pages[site / "index.html"].links}
    assert [str(page) for page in sources if str(page) not in {*linked, "index.html"}] == []
    assert len(sources) > 35


def test_the_search_knows_a_setting_and_a_metric(site):
    index = json.loads(re.fullmatch(r"Search\.setIndex\((.*)\)", (site / "searchindex.js").read_text(), re.DOTALL)[1])
    for term, page in (("zero_std_frac", "reference/metrics"), ("max_resampl", "reference/settings")):
        found = index["terms"][term]
        assert page in [index["docnames"][number] for number in (found if isinstance(found, list) else [found])]


@pytest.mark.parametrize("link", ["[x](gone.md)", "[x](other.md#gone)", "[x](../gone.py)", "[x](#gone)"])
def test_a_dead_link_stops_the_build(tmp_path, link):
    source = tmp_path / "doc"
    source.mkdir()
    (source / "conf.py").write_text((ROOT / "doc" / "conf.py").read_text().replace('"site.css"', ""))
    (source / "_static").mkdir()
    (source / "index.md").write_text(f"# One\n\n{link}\n\n## Part\n\n- [Other](other.md)\n")
    (source / "other.md").write_text("# Other\n")
    done = build(source, tmp_path)
    assert done.returncode == 1 and "gone" in done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_pages_fit_a_phone_and_follow_the_system_into_the_dark(site, tmp_path):
    with browser(tmp_path / "profile") as page:
        shades = {}
        for theme in ("light", "dark"):
            page.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            for name in ("index", "guides/training", "reference/commands", "reference/metrics", "project/results"):
                page.show(site / f"{name}.html", width=390, height=844)
                assert page.run("document.documentElement.scrollWidth") <= 390, name
            shades[theme] = page.run("getComputedStyle(document.body).backgroundColor")
        assert shades == {"light": "rgb(255, 255, 255)", "dark": "rgb(19, 20, 22)"}
        assert page.said == []
