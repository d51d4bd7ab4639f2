"""The limits in `docs/security.md` are those of the code, and the tests it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halrp.lab.data import archives, cache, transfer, xz
from halrp.lab.data.download import RetryPolicy
from halrp.lab.presets import sweep_file
from halrp.lab.records import schema, state_file
from halrp.lab.report import script_library
from halrp.server import tokens
from halrp.server.limits import Limits
from halrp.store import atomic, manifest, signing

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "security.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE))
MIB = 1 << 20


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("manifest, layout", (f"{manifest.LARGEST // MIB} MiB", f"{manifest.MOST_FILES:,} files")),
        ("base, task", (f"{atomic.LARGEST >> 30} GiB", "four times")),
        ("record", (f"{schema.LARGEST // MIB} MiB",)),
        ("state of an interrupted run", (f"{state_file.LARGEST >> 30} GiB",)),
        ("sweep file", (f"{sweep_file.LARGEST >> 10} KiB", f"{sweep_file.LONGEST:,} characters")),
        ("key, signature", (f"{signing.LARGEST >> 10} KiB",)),
        ("archive or other file of a data set", (f"{archives.LARGEST_TOTAL >> 30} GiB",)),
        ("member of an archive, compressed file, MATLAB file", (f"{archives.LARGEST_MEMBER // MIB} MiB",)),
        ("members of an archive", (f"{archives.MOST_MEMBERS:,}", f"{archives.LARGEST_DIRECTORY // MIB} MiB")),
        ("memory of an xz decompressor", (f"{xz.MEMORY // MIB} MiB",)),
        (
            "notes of the cache and of downloads",
            (f"{cache.LARGEST_NOTE // MIB} MiB", f"{transfer.LARGEST_NOTE >> 10} KiB"),
        ),
        ("request to a server", tuple(f"{n // MIB} MiB" for n in (Limits.body, Limits.text, Limits.bodies))),
        ("file of tokens", (f"{tokens.LARGEST // MIB} MiB",)),
        ("cached script of the report", (f"{script_library.LARGEST // MIB} MiB",)),
    ],
)
def test_limits_are_those_of_the_code(row: str, values: tuple[str, ...]) -> None:
    for value in values:
        assert re.search(rf"(?<![\d,.]){re.escape(value)}", ROWS[row]), (row, ROWS[row], value)


def test_the_limits_of_downloads_are_those_of_the_code() -> None:
    policy = RetryPolicy()
    assert f"no byte for {policy.timeout:g} seconds" in TEXT
    assert f"less than {policy.slowest:,.0f} bytes per second over a minute" in TEXT
    assert (policy.window, policy.deadline) == (60, 6 * 3600)
    assert "after six hours" in TEXT


def test_the_limit_of_pictures_is_that_of_pillow() -> None:
    from PIL import Image

    assert f"{Image.MAX_IMAGE_PIXELS:,} pixels" in ROWS["picture of a folder of pictures"]


def test_the_tests_that_it_names_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", TEXT))
    assert len(named) >= 6
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
