"""Sphinx makes the site of these pages: `make site`. The pages are read as they stand on the hosting page, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOC = Path(__file__).parent
ROOT = DOC.parent

project = "AgentGRPO"
extensions = ["myst_parser"]
nitpicky = True
smartquotes = False  # they would make a dash of a flag's `--`
myst_heading_anchors = 4
highlight_language = "text"  # a block without a language has commands or output
html_theme = "furo"
html_title = "AgentGRPO"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_use_index = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

# Files of the repository that are pages of the site.
PAGES = {"README": "index", "CHANGELOG": "project/changelog", "CONTRIBUTING": "project/contributing"}


def navigation_of(index: str) -> str:
    """Toctrees with the sections and links of the index, whose list is what the hosting page shows."""
    trees = []
    for section in index.split("\n## ")[1:]:
        links = re.findall(r"\[([^\]]+)\]\(([\w/]+)\.md\)", section)
        pages = "\n".join(f"{title} <{page}>" for title, page in links)
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {section.splitlines()[0]}\n\n{pages}\n```")
    return "\n\n".join(["", *trees])


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == "index":
        source[0] += navigation_of(source[0])


class LinksToRepository(SphinxTransform):
    """Links to files of the repository that are no pages: their text, with the path as its title."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        known = self.env.found_docs
        page = DOC / Path(self.env.doc2path(self.env.docname)).relative_to(DOC)
        for link in list(self.document.findall(addnodes.pending_xref)) + list(
            self.document.findall(addnodes.download_reference)
        ):
            target = link["reftarget"].partition("#")[0]
            if not target or target in known or re.match(r"[a-z]+:", target):
                continue
            places = (page.parent / target, DOC / target, DOC / f"{target}.md", ROOT / target)
            place = next((each.resolve() for each in places if each.exists()), None)
            if place is None or not place.is_relative_to(ROOT) or (place.is_relative_to(DOC) and place.is_file()):
                continue
            name = str(place.relative_to(ROOT))
            if name.removesuffix(".md") in PAGES:
                link.replace_self(self._to_page(link, PAGES[name.removesuffix(".md")]))
            else:
                link.replace_self(nodes.abbreviation("", "", *link.children, explanation=name))

    def _to_page(self, link: nodes.Element, docname: str) -> nodes.Element:
        at = link["reftarget"].partition("#")[2] or None
        given = {"refdomain": "doc", "reftarget": docname, "reftargetid": at, "refdoc": self.env.docname}
        return addnodes.pending_xref("", *link.children, **given, reftype="myst", refexplicit=True)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.add_transform(LinksToRepository)
