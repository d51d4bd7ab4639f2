"""What a page of the report shows: it is compressed within the page."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path


def page_content(path: Path) -> str:
    """The JSON of all tables and figures of a page."""
    [content] = re.findall(r'<script[^>]* id="data">([^<]+)<', path.read_text("utf-8"))
    return gzip.decompress(base64.b64decode(content)).decode()
