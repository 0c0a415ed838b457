"""Hooks of the documentation site: links to files outside docs/, a complete reference, nothing from other hosts."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GITHUB = "https://github.com/flipout/flipout/blob/main/"
PAGES = {ROOT / "CONTRIBUTING.md": "contributing.md", ROOT / "CHANGELOG.md": "changelog.md"}
PACKAGES = ("flipout", "flipout.export", "flipout_lab")

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]+)?\)")
LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]+src="?(?:https?:)?//[^>]*|<link(?![^>]+canonical)[^>]+href="?https?://[^>]*'
)
log = logging.getLogger("mkdocs.hooks.flipout")  # a warning fails the build: it is strict
documented: set[str] = set()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are at the top of the repository, where GitHub expects them."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that work in the repository so that they work on the site. Other files are shown on GitHub."""
    source = Path(page.file.abs_src_path or DOCS / page.file.src_uri)
    folder = (DOCS / page.file.src_uri).parent

    def rewritten(match: re.Match[str]) -> str:
        target, anchor = (source.parent / match[1]).resolve(), match[2] or ""
        if target in PAGES:
            target = DOCS / PAGES[target]
        elif not target.exists():
            log.warning("%s links to %s, which does not exist", source.relative_to(ROOT), match[1])
        if target.is_relative_to(DOCS):
            return f"]({Path(os.path.relpath(target, folder)).as_posix()}{anchor})"
        return f"]({GITHUB}{target.relative_to(ROOT).as_posix()}{anchor})"

    return LINK.sub(rewritten, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn about everything that a page loads from another host: the site must work offline."""
    for loaded in LOADED.findall(output):
        log.warning("%s loads from another host: %s", page.file.src_uri, loaded)
    documented.update(re.findall(r'id="(flipout(?:_lab)?\.[\w.]+)"', output))
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Warn about public names that the API reference lacks, because they have no docstring or no entry."""
    for package in PACKAGES:
        module = griffe.load(package, search_paths=[ROOT / "src"])
        for name in module.exports or ():
            if not (DOCS / "reference" / f"{name}.md").exists() and f"{package}.{name}" not in documented:
                log.warning("the API reference lacks %s.%s: does it have a docstring?", package, name)
