"""Names that users type."""

import pytest

from halrp.errors import SettingError
from halrp.lab.names import check_name


def test_a_known_name_passes_and_a_part_of_it_does_not() -> None:
    check_name("method", "halrp", ["halrp", "gpm"])
    with pytest.raises(SettingError, match="no method is called 'halr'"):
        check_name("method", "halr", ["halrp", "gpm"])


def test_an_unknown_name_is_answered_with_the_nearest_and_all() -> None:
    message = "no method is called 'gmp'; the nearest name is 'gpm', and all of them are halrp, gpm"
    with pytest.raises(SettingError, match=message):
        check_name("method", "gmp", {"halrp": 1, "gpm": 2})


def test_a_name_where_there_are_none_is_refused_too() -> None:
    with pytest.raises(SettingError, match="there is none"):
        check_name("method", "gpm", [])
