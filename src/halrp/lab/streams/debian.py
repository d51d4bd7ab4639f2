"""One-line descriptions of Debian's packages, classified by the section of the package.

They are read from the system's own list (`apt-cache dumpavail`), which every Debian system has; they have the licences
of their packages and are never copied. Other releases have other texts.
"""

from __future__ import annotations

import functools
import re
import subprocess

from halrp.lab.data import DataMissing

DEV = {
    "languages": ("python", "perl", "haskell", "rust", "golang", "javascript", "java", "ruby"),
    "media": ("sound", "graphics", "video", "fonts"),
    "services": ("admin", "net", "mail", "web", "database"),
    "study": ("science", "math", "games", "electronics"),
}
HELD_OUT = {
    "ecosystems": ("gnu-r", "php", "ocaml", "lisp", "cli-mono"),
    "desktops": ("gnome", "kde", "x11", "localization"),
    "building": ("devel", "libs", "libdevel", "doc", "interpreters"),
    "writing": ("text", "editors", "tex", "utils", "misc"),
}
SECTIONS = DEV | HELD_OUT
"""The sections of each task. No section is in two tasks."""


@functools.cache
def descriptions() -> dict[str, list[str]]:
    """The descriptions of each section's packages, sorted and without repetitions."""
    try:
        listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise DataMissing(f"the descriptions of Debian's packages need apt-cache, which fails here: {error}") from error
    sections: dict[str, set[str]] = {}
    for entry in listed.split("\n\n"):
        fields = dict(re.findall(r"^(Section|Description): (.+)$", entry, re.MULTILINE))
        if len(fields) == 2:
            sections.setdefault(fields["Section"].rpartition("/")[2], set()).add(fields["Description"])
    return {section: sorted(texts) for section, texts in sections.items()}
