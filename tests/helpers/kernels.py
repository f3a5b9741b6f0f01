"""Compile the kernels of packing once, so that no worker of the tests waits for them."""

import importlib
import pkgutil

import numpy as np

from packprep.packing import kernels
from packprep.packing.kernels.compiled import KERNELS


def load_all() -> None:
    """Compile each kernel of packing and windows for two types of ids, or load it from its file."""
    names = [each.name for each in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}.")]
    for name in (*names, "packprep.windows.labels", "packprep.windows.mix_draw"):
        importlib.import_module(name)
    for kernel in KERNELS:
        for dtype in (np.uint16, np.int32):
            kernel.load((np.dtype(dtype),) * len(kernel.free))


if __name__ == "__main__":
    load_all()
