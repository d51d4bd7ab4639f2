"""Numbers in documents come from committed records."""

import json
from pathlib import Path

import pytest

from benchmarks import any_task, file_parts, method_pictures, scale, serve_store
from benchmarks.pretrained import picture
from benchmarks.pretrained import table as pretrained
from halrp.lab.report import documents

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
    made = picture.parts(ROOT / "results" / "pretrained")
    for name in picture.DOCUMENTS:
        text = (ROOT / name).read_text("utf-8")
        assert documents.filled(text, made) == text, f"{name} is stale; run: python -m benchmarks.pretrained table"
        assert all(f"<!-- begin {part} -->" in text for part in made)
    drawn = (ROOT / "docs" / "figures" / "pretrained.svg").read_text("utf-8")
    assert drawn == picture.figure(ROOT / "results" / "pretrained"), "run: python -m benchmarks.pretrained table"


def test_the_pictures_of_the_method_are_those_of_their_record() -> None:
    shown = (ROOT / "docs" / "method.md").read_text("utf-8")
    for name, content in method_pictures.pictures(json.loads(method_pictures.RECORD.read_text("utf-8"))).items():
        drawn = (ROOT / "docs" / "figures" / name).read_text("utf-8")
        assert drawn == content, f"{name} is stale; run: python -m benchmarks.method_pictures draw"
        assert f"(figures/{name})" in shown
