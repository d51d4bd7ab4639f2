"""Check names that users type, with a helpful error when they are wrong."""

import difflib
from collections.abc import Iterable

from halrp.errors import SettingError


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise `SettingError` with the nearest name unless `name` is one of the `known` names of a `kind` of thing."""
    known = list(known)
    if name in known:
        return
    folded = {candidate.casefold(): candidate for candidate in reversed(known)}
    close = difflib.get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.0)
    hint = "; there is none"
    if close:
        hint = f"; the nearest name is {folded[close[0]]!r}, and all of them are {', '.join(known)}"
    raise SettingError(f"no {kind} is called {name!r}{hint}")
