"""Hooks of the documentation site: pages and links from outside of docs/, and nothing loaded from other hosts."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOB = "https://github.com/flipout/flipout/blob/main/"
PAGES = {ROOT / "CONTRIBUTING.md": "contributing.md", ROOT / "CHANGELOG.md": "changelog.md"}

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]+)?\)")
LOADED = re.compile(r'<(?:script|img|iframe)[^>]+src="?(?:https?:)?//[^>]*|<link(?![^>]+canonical)[^>]+href="?https?://[^>]*')
log = logging.getLogger("mkdocs.hooks.flipout")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie at the top of the repository, where GitHub looks for them."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links work on the site that work in the repository: a file outside of docs/ is one on GitHub."""
    source = Path(page.file.abs_src_path or DOCS / page.file.src_uri)
    here = (DOCS / page.file.src_uri).parent

    def on_site(match: re.Match[str]) -> str:
        target, anchor = (source.parent / match[1]).resolve(), match[2] or ""
        if target in PAGES:
            target = DOCS / PAGES[target]
        elif not target.exists():
            log.warning("%s links to %s, which does not exist", source.relative_to(ROOT), match[1])
        if target.is_relative_to(DOCS):
            return f"]({Path(os.path.relpath(target, here)).as_posix()}{anchor})"
        return f"]({BLOB}{target.relative_to(ROOT).as_posix()}{anchor})"

    return LINK.sub(on_site, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The site works offline: warn of anything that a page would load from another host."""
    for loaded in LOADED.findall(output):
        log.warning("%s loads from another host: %s", page.file.src_uri, loaded)
    return output
