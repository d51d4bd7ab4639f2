"""Event files for TensorBoard: losses while a cell learns, accuracies and sizes after every task."""

from __future__ import annotations

import os
from pathlib import Path

from halrp.errors import SettingError
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.training.progress import Progress


class EventFile:
    """Writes the progress of a run to `folder/CELL`; pass `progress` and `row` to `runner.execute`."""

    def __init__(self, folder: str | os.PathLike[str], cell: Cell) -> None:
        """Create the file; needs the package tensorboard."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise SettingError("event files need tensorboard; run: pip install 'halrp[tensorboard]'") from error
        self.folder = Path(folder) / cell.name
        self._writer = SummaryWriter(str(self.folder))

    def progress(self, event: Progress) -> None:
        """A loss after every epoch, with a curve for each stage of each task."""
        if event.loss is not None:
            self._writer.add_scalar(f"loss/{event.task}/{event.stage}", event.loss, event.epoch)

    def row(self, row: runner.Row) -> None:
        """Accuracies in % of every task so far, their mean, and what is stored, by the position of the newest task."""
        position = row["position"]
        for part in ("val", "test"):
            known = [share for share in row[part] if share is not None]
            if known:
                self._writer.add_scalar(f"accuracy/{part}", 100 * sum(known) / len(known), position)
                for task, share in enumerate(known):
                    self._writer.add_scalar(f"accuracy of each task/{part}/{task}", 100 * share, position)
        for name in ("parameters", "bytes"):
            if name in row:
                self._writer.add_scalar(f"stored/{name}", row[name], position)
        self._writer.add_scalar("seconds", row["seconds"], position)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
