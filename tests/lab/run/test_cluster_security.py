"""What a sweep trusts of a cluster: TLS, the results folder, and what workers send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

import distributed

from halrp.cli.app import app
from halrp.errors import DamagedError, SettingError
from halrp.lab.records import schema
from halrp.lab.run import runner, sweep
from halrp.lab.run.cluster_security import ClusterSecurity, event_of
from halrp.lab.run.dask_engine import DaskEngine
from halrp.lab.run.engine import Event
from tests.commands import invoke
from tests.lab.run.certificates import authority
from tests.lab.run.tiny_cells import STL, alone, records

FAR = "tcp://cluster.example:8786"


@contextmanager
def cluster(files: dict[str, Any] | None = None) -> Iterator[str]:
    """The address of a scheduler with one worker, in threads of this process."""
    settings: dict[str, Any] = {"protocol": "tcp://"}
    if files is not None:
        security = distributed.Security(
            tls_ca_file=str(files["tls_ca"]),
            require_encryption=True,
            **{
                f"tls_{role}_{part}": str(files[f"tls_{part}"])
                for role in ("client", "scheduler", "worker")
                for part in ("cert", "key")
            },
        )
        settings = {"security": security, "protocol": "tls://"}
    # A port of its own also for the server of pages, which starts without a dashboard too.
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", host="127.0.0.1", **settings
    ) as started:
        yield started.scheduler_address


def learn(engine: DaskEngine, folder: Path) -> dict[str, int]:
    with engine:
        return dict(sweep.run_cells([STL], engine, folder, {}, 1, lambda *_: None).counts)


def test_a_cell_runs_over_tls_by_workers_that_never_see_the_results_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mine: dict[str, Any] = authority(tmp_path / "mine")
    other: dict[str, Any] = authority(tmp_path / "other")
    out = tmp_path / "out"
    with cluster(mine) as address:
        assert address.startswith("tls://")
        with pytest.raises(SettingError, match="needs TLS; give --tls-ca, --tls-cert, --tls-key"):
            DaskEngine(address, out)
        with pytest.raises(SettingError, match="are the certificates those of its authority"):
            DaskEngine(address, out, wait=0.5, security=ClusterSecurity(**other))
        assert not out.exists()
        engine = DaskEngine(address, out, wait=60, security=ClusterSecurity(**mine, trusted=False))
        assert engine._arguments[:2] == (None, None), "no path of the results folder is sent"
        assert learn(engine, out) == {"done": 1}
    assert [path.name for path in out.iterdir()] == [f"{STL.name}.json"]
    assert records(out) == alone(tmp_path / "alone", [STL])


def test_a_wrong_record_in_the_shared_folder_fails_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forged(cell: Any, folder: Path, **_: Any) -> Any:
        record = real(cell, folder, **_)
        path = Path(folder) / f"{cell.name}.json"
        path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
        return record

    real = runner.execute
    monkeypatch.setattr(runner, "execute", forged)
    with cluster() as address, DaskEngine(address, tmp_path / "out", wait=60) as engine:
        status = sweep.run_cells([STL], engine, tmp_path / "out", {}, 1, lambda *_: None)
    assert status.counts == {"failed": 1}
    assert f"{STL.name}.json" in status.failed[STL.name]


@pytest.mark.parametrize(
    ("address", "settings", "problem"),
    [
        (FAR, {"tls_ca": "ca"}, "TLS needs three files: give --tls-cert and --tls-key as well"),
        (FAR, {"tls_ca": "ca", "tls_cert": "cert", "tls_key": "none"}, r"--tls-key .*none is not a file"),
        (FAR, {"tls_ca": "ca", "tls_cert": "cert", "tls_key": "key"}, "is not an encrypted address"),
        ("tls://cluster.example:8786", {}, "needs TLS"),
        (FAR, {"trusted": False}, "are not trusted, but anybody on the way"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    address: str, settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text("")
    paths: dict[str, Any] = {k: str(tmp_path / v) if isinstance(v, str) else v for k, v in settings.items()}
    with pytest.raises(SettingError, match=problem):
        DaskEngine(address, tmp_path / "out", security=ClusterSecurity(**paths))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1", "127.0.0.1:1"])
def test_workers_on_this_machine_need_no_tls(address: str) -> None:
    ClusterSecurity(trusted=False).check(address)


def test_the_command_takes_the_settings(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('stream = "digits"\nbackbone = "mlp"\nmethod = "stl"\n')
    sweep_of = ("sweep", tmp_path / "mine.toml", "--results", tmp_path / "out")
    assert "name its --scheduler" in invoke(app, *sweep_of, "--untrusted").error
    assert "are not trusted" in invoke(app, *sweep_of, "--untrusted", "--scheduler", FAR).error
    assert (
        "--tls-cert and --tls-key as well"
        in invoke(app, *sweep_of, "--scheduler", FAR, "--tls-ca", tmp_path / "mine.toml").error
    )


GOOD = asdict(Event("cell", "row", 2, 1.0, "text", 0.5, 3.0))


def test_an_event_of_a_submitted_cell_is_taken() -> None:
    assert event_of(GOOD, {"cell"}) == Event(**GOOD)
    assert event_of({"cell": "cell", "kind": "started"}, {"cell"}) == Event("cell", "started")
    long = event_of(GOOD | {"text": "x" * 10**6}, {"cell"})
    assert long is not None
    assert len(long.text) == 10_000


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        {"cell": "cell"},
        GOOD | {"cell": "other"},
        GOOD | {"cell": []},
        GOOD | {"kind": "launched"},
        GOOD | {"kind": []},
        GOOD | {"position": -1},
        GOOD | {"position": 1.5},
        GOOD | {"share": float("nan")},
        GOOD | {"accuracy": "high"},
        GOOD | {"seconds": None},
        GOOD | {"text": 5},
        GOOD | {"more": 1},
    ],
)
def test_what_is_no_event_is_dropped(message: Any) -> None:
    assert event_of(message, {"cell"}) is None


def test_what_is_no_record_is_not_written(tmp_path: Path) -> None:
    record = runner.execute(STL, tmp_path)
    path = tmp_path / f"{STL.name}.json"
    path.unlink()
    unsealed = {name: value for name, value in record.items() if name not in ("checksum", "version", "method")}
    rows = json.loads(json.dumps(record["rows"]))
    rows[0]["test"][0] = 7.0
    forged = {name: value for name, value in record.items() if name not in ("checksum", "version")} | {"rows": rows}
    sent = [unsealed, schema.seal(forged), record | {"rows": object()}, record | {"note": "x" * (65 << 20)}]
    for raw in sent:
        with pytest.raises(DamagedError, match="record"):
            runner.check_sent(STL, raw)
    assert not path.exists()
