"""Records and reports need neither torch nor any method."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parents[3] / "results"

PROGRAM = """
import sys
from pathlib import Path
from halrp.lab.metrics import average_accuracy
from halrp.lab.records import frames, loading, metrics, schema, summary
from halrp.lab.report import build, comparison, documents, page, pairing, paper, relations, representative, study
from halrp.lab.report import table, table_terminal, table_writers

paths = [Path(sys.argv[1])]
records, problems = loading.load(paths)
sections = build.build(records)
text = page.page("A report", sections, build.left_out(problems, paths), build.made_from(records, paths))
assert len(records) > 3 and len(text) > 10_000
documents.parts(paths[0].parent)["demo"]()
loaded = [name for name in sys.modules if name.partition(".")[0] == "torch" or name.startswith("halrp.lab.methods")]
print(sorted(loaded))
"""


def test_a_report_of_committed_records_loads_neither_torch_nor_a_method() -> None:
    command = [sys.executable, "-c", PROGRAM, str(RESULTS / "demo")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
