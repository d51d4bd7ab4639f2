"""A stream as a sequence."""

from dataclasses import replace

import pytest

from halrp.errors import TaskError
from halrp.lab.streams import load


def test_a_stream_is_a_sequence() -> None:
    stream = load("digits", order="C")
    assert len(stream) == 10
    assert [task.identity for task in stream] == list(stream.identities)
    assert stream[-1].identity == stream.identities[-1]
    assert [task.identity for task in stream[2:4]] == list(stream.identities[2:4])
    assert stream[2:4].shape == stream.shape == (1, 8, 8)
    assert len({task.name for task in stream}) == 10
    with pytest.raises(IndexError):
        stream[10]


def test_tasks_and_streams_are_printed_by_what_they_are() -> None:
    stream = load("digits", order="C", seed=1)
    assert repr(stream) == "Stream('digits', order='C', seed=1, fraction=1.0, tasks=10)"
    assert repr(stream[0]).startswith(f"Task({stream[0].name!r}, identity={stream.identities[0]}, classes=5, ")
    assert f"train/val/test=440/130/{len(stream[0].test.y)}" in repr(stream[0])


def test_a_task_with_a_name_that_no_file_can_hold_is_refused() -> None:
    task = load("digits")[0]
    with pytest.raises(TaskError, match="half of a surrogate pair"):
        replace(task, name="folder-\udcff")
    with pytest.raises(TaskError, match="half of a surrogate pair"):
        replace(task, class_names=("a", "\ud83d"))
