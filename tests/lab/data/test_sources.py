"""The facts about official files: complete, well-formed, and in the places where the readers look."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import pytest

from halrp.errors import SettingError
from halrp.lab.data import SETS
from halrp.lab.data.reading import locate
from halrp.lab.data.sources import File, source, sources
from halrp.lab.reference import load_reference

FILES = [file for item in sources().values() for file in item.files]


def test_every_data_set_can_be_downloaded() -> None:
    assert set(sources()) == set(SETS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path)
def test_a_file_has_addresses_a_size_and_a_checksum(file: File) -> None:
    assert file.urls
    assert all(urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname for url in file.urls)
    assert all(PurePosixPath(urlsplit(url).path).name == PurePosixPath(file.path).name for url in file.urls)
    assert file.bytes is None or file.bytes > 0
    assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
    assert file.md5 is None or re.fullmatch("[0-9a-f]{32}", file.md5)
    path = PurePosixPath(file.path)
    assert not path.is_absolute()
    assert ".." not in path.parts


def test_every_known_value_says_where_it_is_published() -> None:
    for item in load_reference("downloads")["sets"].values():
        for file in item["files"]:
            reported = {value for key in file["published"] for value in key.split(", ")}
            assert reported == {key for key in ("bytes", "sha256", "md5") if file[key] is not None}


def test_reference_data_cannot_be_changed_by_a_caller() -> None:
    load_reference("downloads")["sets"].clear()
    assert load_reference("downloads")["sets"]


def test_no_value_is_used_for_two_files() -> None:
    for values in ([file.sha256 for file in FILES if file.sha256], [file.path for file in FILES]):
        assert len(set(values)) == len(values)


def test_the_stronger_checksum_is_checked() -> None:
    assert File("a", (), None, "s", "m").checksum == ("sha256", "s")
    assert File("a", (), None, None, "m").checksum == ("md5", "m")
    assert File("a", (), None, None, None).checksum is None


@pytest.mark.parametrize("name", sources())
def test_the_readers_find_the_files_where_downloads_put_them(name: str, tmp_path: Path) -> None:
    for file in source(name).files:
        (tmp_path / file.path).parent.mkdir(exist_ok=True)
        (tmp_path / file.path).touch()
    result = locate(SETS[name], tmp_path)
    assert result is not None
    assert {path for files in result.files.values() for path in files} == {
        tmp_path / file.path for file in source(name).files
    }


@pytest.mark.parametrize("name", sources())
def test_a_download_under_way_is_not_taken_for_the_data_set(name: str, tmp_path: Path) -> None:
    for file in source(name).files:
        part = tmp_path / f"{file.path}.part"
        part.parent.mkdir(exist_ok=True)
        part.touch()
        part.with_name(f"{part.name}.json").touch()
    result = locate(SETS[name], tmp_path)
    assert result is None or tmp_path not in (result.directory, *result.directory.parents)


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="'fashion-mnist'"):
        source("fashion_mnist")
