"""Data sets on disk: found, downloaded, decoded once, and read as arrays of bytes."""

from halrp.lab.data.images import DataDamaged, DataMissing, Images, LoadedDataSet
from halrp.lab.data.inventory import Status, status
from halrp.lab.data.reading import read
from halrp.lab.data.sets import SETS, DataSet
from halrp.lab.directories import cache_directory, data_directory

__all__ = [
    "SETS",
    "DataDamaged",
    "DataMissing",
    "DataSet",
    "Images",
    "LoadedDataSet",
    "Status",
    "cache_directory",
    "data_directory",
    "read",
    "status",
]
