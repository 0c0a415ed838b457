"""Stopping on Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Set an event on Ctrl-C or SIGTERM, to stop after the current step. A second signal stops the process at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping  # only the main thread can handle signals
        return

    def ask(number: int, _: object) -> None:
        if stopping.is_set():
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)
        stopping.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
