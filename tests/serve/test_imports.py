"""What a server loads: predicting needs neither the training code nor the method."""

from __future__ import annotations

import subprocess
import sys


def test_the_predictor_imports_no_training_code() -> None:
    imports = "import halrp.serve.predictor, halrp.serve.store_predictor, sys"
    code = f"{imports}; print(*sorted(m for m in sys.modules if m.startswith('halrp.')))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = result.stdout.split()
    assert "halrp.model.mixed" in modules
    allowed = ("halrp.serve", "halrp.store", "halrp.model", "halrp.objectives", "halrp.checks")
    other = [name for name in modules if not name.startswith(allowed)]
    assert set(other) <= {"halrp.errors", "halrp.seeding", "halrp.text", "halrp._version"}
