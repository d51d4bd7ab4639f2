"""Numbers in documents come from committed records."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import any_task, file_parts, method_pictures, scale, serve_store
from benchmarks.pretrained import commits, leaderboard, picture
from benchmarks.pretrained import table as pretrained
from halrp.lab.report import documents
from tests.lab.made_records import put, stable

ROOT = Path(__file__).parent.parent
REMEDY = "run: python -m halrp.lab.report.documents"


def test_the_generated_parts_of_documents_are_what_the_records_say() -> None:
    made = documents.parts(ROOT / "results")
    texts = {name: (ROOT / name).read_text() for name in documents.DOCUMENTS}
    for name, text in texts.items():
        assert documents.filled(text, made) == text, f"{name} is stale; {REMEDY}"
    assert all(any(f"<!-- begin {name} -->" in text for text in texts.values()) for name in made)


def test_the_figures_of_documents_show_what_the_records_say() -> None:
    shown = "".join((ROOT / name).read_text() for name in documents.DOCUMENTS)
    for name, (plot, title) in documents.figures(ROOT / "results").items():
        text = (ROOT / name).read_text()
        assert text.startswith("<svg"), name
        assert text.endswith(documents.checksum(plot, title)), f"{name} is stale; {REMEDY}"
        assert Path(name).name in shown


def test_the_parts_of_a_tasks_file_in_the_document_are_those_of_this_format(capsys: pytest.CaptureFixture[str]) -> None:
    file_parts.main()
    shown = (ROOT / "docs" / "results.md").read_text()
    for line in capsys.readouterr().out.strip().splitlines():
        assert line in shown, "run: python -m benchmarks.file_parts"


def test_the_tables_of_pretrained_networks_are_those_of_their_records() -> None:
    text = (ROOT / "docs" / "pretrained.md").read_text()
    made = pretrained.parts(ROOT / "results" / "pretrained")
    assert documents.filled(text, made) == text, (
        "docs/pretrained.md is stale; run: python -m benchmarks.pretrained table"
    )
    assert all(f"<!-- begin {name} -->" in text for name in made)


def test_the_tables_of_serving_are_those_of_their_record() -> None:
    text = (ROOT / "docs" / "serving.md").read_text()
    made = serve_store.parts(json.loads((ROOT / "results" / "benchmarks" / "serve_store.json").read_text()))
    assert documents.filled(text, made) == text, "docs/serving.md is stale; run: python -m benchmarks.serve_store table"
    assert all(f"<!-- begin {name} -->" in text for name in made)


def test_the_table_of_large_stores_is_that_of_its_record() -> None:
    text = scale.PAGE.read_text()
    made = scale.parts(json.loads(scale.RECORD.read_text()))
    assert documents.filled(text, made) == text, "docs/scaling.md is stale; run: python -m benchmarks.scale table"
    assert all(f"<!-- begin {name} -->" in text for name in made)


def test_the_table_of_kinds_of_tasks_is_that_of_its_record() -> None:
    record = json.loads((ROOT / "results" / "benchmarks" / "any_task.json").read_text())
    assert any_task.table(record["rows"]) in (ROOT / "docs" / "tasks.md").read_text()


def test_the_table_of_text_tenants_is_that_of_its_record() -> None:
    record = json.loads((ROOT / "results" / "benchmarks" / "text_tenants.json").read_text())
    shown = (ROOT / "docs" / "transformers.md").read_text()
    for row in record["rows"]:
        shares = f"{100 * row['accuracy']:.1f} | {100 * row['head alone']:.1f}"
        line = f"| {row['tenant']} | {row['classes']} | {row['train']} | {row['test']} | {shares} | {row['bytes']:,} |"
        assert line in shown, line


def test_the_leaderboard_and_its_picture_are_those_of_their_records() -> None:
    made = leaderboard.parts(ROOT / "results" / "pretrained")
    for name in leaderboard.DOCUMENTS:
        text = (ROOT / name).read_text("utf-8")
        assert documents.filled(text, made) == text, f"{name} is stale; run: python -m benchmarks.pretrained table"
        assert all(f"<!-- begin {part} -->" in text for part in made)
    drawn = (ROOT / "docs" / "figures" / "pretrained.svg").read_text("utf-8")
    assert drawn == picture.figure(ROOT / "results" / "pretrained"), "run: python -m benchmarks.pretrained table"


def test_every_row_of_the_leaderboard_names_the_commit_that_reached_it() -> None:
    shown = leaderboard.parts(ROOT / "results" / "pretrained")["leaderboard"]
    for row in shown().splitlines()[2:]:
        assert re.search(r"\| `[0-9a-f]{7}`(, `[0-9a-f]{7}`)* \|$", row), (
            f"{row}: run: python -m benchmarks.pretrained commits, then the same with table"
        )


def test_records_without_a_commit_are_known_by_the_one_that_brought_them(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        names = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *names, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    old, newer, named = {"task": "a"}, {"task": "b"}, {"task": "c", "commit": "0123456789ab"}
    git("init", "-q")
    made = []
    for rows in ([old], [old, newer, named]):
        (tmp_path / "vision.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        git("add", "vision.jsonl")
        git("commit", "-q", "-m", "records")
        made.append(git("rev-parse", "HEAD")[:12])
    assert commits.write(tmp_path, {"vision": [old, newer, named]}) == 2
    known = commits.read(tmp_path)["vision"]
    assert [commits.commit_of(row, known) for row in (old, newer, named)] == [*made, "0123456789ab"]
    shutil.rmtree(tmp_path / ".git")
    assert commits.write(tmp_path, {"vision": [old, newer, named]}) == 2, "what was known stays known without a history"
    assert commits.commit_of({"task": "d"}, known) is None


def test_the_papers_benchmark_is_on_the_leaderboard_once_there_are_records_of_ours(tmp_path: Path) -> None:
    def row_of(name: str, gain: float, size: float, order: str = "A", commit: str = "") -> None:
        final = {task: 0.5 + 0.01 * task + gain for task in range(4)}
        record = stable(final, list(range(4)), name, bytes=[1e6 + size * i for i in range(4)], order=order)
        put(tmp_path, f"{name}{order}.json", record | {"environment": {"commit": commit}})

    def rows() -> list[str]:
        return leaderboard.leaderboard({}, {}, {}, tmp_path).splitlines()[2:]

    for name, gain, size in (("ewc", 0.0, 20_000), ("be", 0.05, 90_000), ("halrp-budget", 0.3, 10_000)):
        row_of(name, gain, size)
    assert rows() == []
    row_of("halrp", 0.1, 80_000, commit="abcdef0123456")
    row_of("halrp", 0.2, 80_000, order="B", commit="1234567890ab")
    bounds = [row.split(" | ")[1:] for row in rows()]
    assert [cells[0] for cells in bounds] == ["100", "200"], "no row where nothing of ours fits"
    assert bounds[0][1:] == ["**66.5 %** (80 KB)", "56.5 % (`be`, 90 KB)", "+5.0 ± 0.0", "`abcdef0`, `1234567` |"]


def test_the_pictures_of_the_method_are_those_of_their_record() -> None:
    shown = (ROOT / "docs" / "method.md").read_text("utf-8")
    for name, content in method_pictures.pictures(json.loads(method_pictures.RECORD.read_text("utf-8"))).items():
        drawn = (ROOT / "docs" / "figures" / name).read_text("utf-8")
        assert drawn == content, f"{name} is stale; run: python -m benchmarks.method_pictures draw"
        assert f"(figures/{name})" in shown
