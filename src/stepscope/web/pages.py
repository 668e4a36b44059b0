"""The start page: drop a capture, watch it being read, open its report, compare two."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files


@cache
def index_page() -> tuple[str, str]:
    """(the page, its content security policy): nothing but its own script and style may run, nothing is loaded."""
    page = (files("stepscope.web") / "index.html").read_text(encoding="utf-8")
    script, style = (_hash_of(page, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _hash_of(page: str, tag: str) -> str:
    match = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert match is not None, f"index.html has no <{tag}>"
    digest = hashlib.sha256(match[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
