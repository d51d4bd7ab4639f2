"""Files of pretrained weights: where they are looked for, and the check of their content.

A name is looked up in the folder `HALRP_WEIGHTS`, by default `halrp/weights` in the user's cache directory; an absolute
path is used as it is. Nothing is fetched.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from halrp.errors import DamagedError, MissingPackageError, SettingError
from halrp.lab.directories import cache_directory


def weights_folder() -> Path:
    """The folder in which files of weights are looked up by name."""
    chosen = os.environ.get("HALRP_WEIGHTS")
    return Path(chosen).expanduser() if chosen else cache_directory() / "weights"


def find(name: str, sha256: str | None = None) -> Path:
    """The file or folder of a name, whose content has the checksum `sha256` if one is given."""
    path = weights_folder() / name  # an absolute name replaces the folder
    if not path.exists():
        raise SettingError(f"weights={name!r} of a backbone: {path} does not exist; put it there, or set HALRP_WEIGHTS")
    if sha256 is not None:
        refuse_other_content(path / "model.safetensors" if path.is_dir() else path, sha256)
    return path


def refuse_other_content(path: Path, sha256: str) -> None:
    """Raise unless a file has the expected checksum."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise DamagedError(
            f"{path} has the SHA-256 {actual}, and {sha256} is expected; get the file again, since numbers would not "
            "compare"
        )


def folder_of(package: str, install: str) -> Path:
    """The folder of an installed package that holds weights; the package is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(f"the weights are missing: {install}")
    return Path(spec.submodule_search_locations[0])


def tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, a safetensors file or one that torch saved; nothing in it is run."""
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no type of its own for a file with code in it, or for one that is torn
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DamagedError(f"{path} does not hold tensors alone: {reason}") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise DamagedError(f"{path} does not hold tensors by name; save the state_dict of a model")
    return state
