"""A package that is not installed is an error in one line, with the extra that brings it."""

from __future__ import annotations

PACKAGES = {
    "cryptography": ("cryptography", "signing"),
    "dask": ("distributed", "cluster"),
    "distributed": ("distributed", "cluster"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "pandas": ("pandas", "lab"),
    "PIL": ("pillow", "lab"),
    "rich": ("rich", "cli"),
    "scipy": ("scipy", "lab"),
    "sklearn": ("scikit-learn", "lab"),
    "starlette": ("starlette", "serve"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "timm": ("timm", "vision"),
    "transformers": ("transformers", "text"),
    "typer": ("typer", "cli"),
    "uvicorn": ("uvicorn", "serve"),
    "vl_convert": ("vl-convert-python", "lab"),
}
"""What a command may import: the package on an index, and the extra of halrp that installs it, by the module's name."""


def remedy(error: ModuleNotFoundError) -> str | None:
    """What is missing and how to install it; None if it is nothing that an extra brings."""
    entry = PACKAGES.get((error.name or "").partition(".")[0])
    return None if entry is None else f"this command needs {entry[0]}; run: pip install 'halrp[{entry[1]}]'"
