"""Names that users type, looked up with a helpful answer when they are wrong."""

import difflib
from collections.abc import Iterable

from halrp.errors import SettingError


def nearest(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise `SettingError` with the nearest name unless `name` is one of the `known` names of a `kind` of thing."""
    known = list(known)
    if name in known:
        return
    folded = {one.casefold(): one for one in reversed(known)}
    close = [folded[one] for one in difflib.get_close_matches(str(name).casefold(), folded, n=1, cutoff=0.0)]
    hint = f"; the nearest name is {close[0]!r}, and all of them are {', '.join(known)}" if close else "; there is none"
    raise SettingError(f"no {kind} is called {name!r}{hint}")
