"""An empty folder to be in for a while."""

import contextlib
import os
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def aside() -> Iterator[str]:
    """For libraries that leave files in the current directory: importing pufferlib puts a link to its resources there."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="freewheel-bench-") as folder:
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)
