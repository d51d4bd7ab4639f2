"""The page at `/`: one file, whose script and style are allowed by their checksums."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

CONTENT = resources.files("halrp.server").joinpath("page.html").read_text("utf-8")


def _allowed(tag: str) -> str:
    text = re.findall(rf"<{tag}>(.*?)</{tag}>", CONTENT, re.DOTALL)[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_allowed('script')}; style-src {_allowed('style')}; connect-src 'self'; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Nothing else may run, be fetched, or show the page in a frame."""
