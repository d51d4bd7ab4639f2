"""Run the tests that use processes, threads, signals, sockets or clocks again and again, idle and under load.

    python -m tests.repeat --times 20                      # 20 times as the machine is, 20 times under load
    python -m tests.repeat --times 5 --load yes tests/lab/run
    python -m tests.repeat --json results/reliability/repeat.json

Prints a line for each run and, at the end, a table of what failed and how often. Under load a process for each core
computes without end, so that everything takes more than twice as long and in another order. "Idle" is the machine as it
is, with whatever else runs on it. With `--load other` that other work is the load, trainings for example: a run counts
as one under load if other processes had at least two fifths of the processors while it lasted. With `--json` every run
is added to a record as soon as it ends, with the load average when it began and the processors that others had;
`python -m tests.reliability.document` makes a table of it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

from tests.timing import uses_timing

BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))\n"
"""A process that computes until its parent has gone."""
LOADED = 0.4
"""The share of the processors that other processes have in a run under load."""


def used() -> float | None:
    """Processor seconds of all processes but those that this one has waited for, where Linux counts them."""
    try:
        line = Path("/proc/stat").read_text("ascii").splitlines()[0]
    except OSError:
        return None
    user, nice, system, _idle, _wait, interrupts, soft, *_ = map(int, line.split()[1:])
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK") - children.ru_utime - children.ru_stime


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep processors busy for a block."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def once(arguments: Sequence[str], workers: int = 0) -> tuple[int, list[str]]:
    """Run the tests, in as many processes; return how many ran, and the names of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--durations=0", "--durations-min=1e9"]
        run = subprocess.run(
            [*command, f"--junit-xml={report}", *arguments], capture_output=True, text=True, check=False
        )
        if not report.exists():
            raise SystemExit(run.stdout + run.stderr)
        cases = [*ElementTree.parse(report).iter("testcase")]
        failed = [
            f"{case.get('classname')}::{case.get('name')}"
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        ]
        if failed:
            print(run.stdout, flush=True)
        return sum(case.find("skipped") is None for case in cases), failed


def with_clocks(paths: Iterable[str]) -> list[str]:
    """The test files in some folders that are marked `timing`; reading all others takes longer than many a run."""
    files = (
        file for path in paths for file in ([Path(path)] if Path(path).is_file() else Path(path).rglob("test_*.py"))
    )
    return sorted(str(file) for file in files if uses_timing(file))


def extend(path: Path, run: dict[str, object]) -> None:
    """Add a run to a record."""
    record: dict[str, list[object]] = json.loads(path.read_text("utf-8")) if path.exists() else {"runs": []}
    record["runs"].append(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{json.dumps(record, indent=1)}\n", "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Repeat, print, and return 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.repeat", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="runs without and with load, each")
    parser.add_argument("--load", choices=("no", "yes", "both", "other"), default="both")
    parser.add_argument("--marked", default="timing and not slow", help="which tests, as pytest's -m takes it")
    parser.add_argument("--workers", type=int, default=0, help="processes that share the tests of a run; 0 is none")
    parser.add_argument("--json", type=Path, help="the record to extend")
    parser.add_argument("paths", nargs="*", default=["tests"])
    options = parser.parse_args(arguments)
    failures, runs = dict[str, Counter[str]](), Counter[str]()
    cores = os.cpu_count() or 1
    paths = with_clocks(options.paths) if options.marked.startswith("timing") else options.paths
    for kind in {"no": ["idle"], "yes": ["load"], "both": ["idle", "load"], "other": ["other"]}[options.load]:
        with load(cores if kind == "load" else 0):
            for number in range(options.times):
                began, busy, before = time.monotonic(), os.getloadavg()[0], used()
                ran, failed = once(["-m", options.marked, *paths], options.workers)
                seconds, after = time.monotonic() - began, used()
                others = None if before is None or after is None else (after - before) / seconds
                loaded = kind == "load" or (kind == "other" and others is not None and others >= LOADED * cores)
                name = "load" if loaded else "idle"
                failures.setdefault(name, Counter()).update(failed)
                runs[name] += 1
                print(f"{name} {number + 1}: {ran} tests, {len(failed)} failed, {seconds:.0f} s", flush=True)
                if options.json is not None:
                    chosen = {"marked": options.marked, "paths": options.paths, "workers": options.workers}
                    result = {"tests": ran, "failed": failed, "seconds": round(seconds), "load": round(busy, 1)}
                    result |= {"others": None if others is None else round(others, 2)}
                    extend(options.json, {"kind": name} | chosen | result)
    for kind, counts in failures.items():
        print(f"{kind}: {runs[kind]} runs, {sum(counts.values())} failures")
        for name, count in counts.most_common():
            print(f"  {count:3} {name}")
    return int(any(failures.values()))


if __name__ == "__main__":
    sys.exit(main())
