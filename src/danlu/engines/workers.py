"""Worker processes that load data: when they end. No framework."""

from __future__ import annotations

import os
import signal
import threading


def heed_only_the_parent(_worker: int) -> None:
    """Ctrl-C, `timeout` and SLURM signal every process; what that means for the run is for the training process to decide."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # macOS has no way to tell who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_leave_when_told, args=(os.getppid(),), daemon=True).start()


def _leave_when_told(parent: int) -> None:
    """Or when the parent is gone: its connections to other ranks are open here too, and these wait until they are closed."""
    while os.getppid() == parent:
        told = signal.sigtimedwait({signal.SIGTERM}, 0.2)
        if told is not None and told.si_pid == parent:
            break
    os._exit(0)
