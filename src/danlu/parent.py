"""A process that does not outlive the one that started it."""

from __future__ import annotations

import os
import threading
import time


def end_with_parent() -> None:
    """End this process when its parent has ended: a launcher that is killed cannot stop what it started."""

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()
