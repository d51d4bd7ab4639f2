"""Continual learning with one frozen base network and one tiny low-rank delta per task."""

from halrp._version import __version__

__all__ = ["__version__"]
