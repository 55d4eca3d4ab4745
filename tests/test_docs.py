"""What the pages for people name is there: files, headings, queries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from topobench.db.queries import list_queries

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(p.relative_to(ROOT) for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))


def anchors(page: Path) -> set[str]:
    """What a link to a heading of a page, or to a mark in it, may say."""
    text = page.read_text(encoding="utf-8")
    heads = (re.sub(r"[^\w\- ]", "", h.strip().lower()) for h in re.findall(r"(?m)^#+ (.*)$", text))
    return {h.replace(" ", "-") for h in heads} | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not link.startswith("https://") and not (
            target.exists() and (not anchor or anchor in anchors(target))
        ):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_queries_are_called_by_their_names(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"topobench query ([a-z][a-z-]+)", text))
    assert named <= {q.name for q in list_queries()}
