"""Ctrl-C and SIGTERM as an event, so that a process ends in order."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class ShutdownSignal:
    """Within its block the first SIGINT or SIGTERM sets `event`; a second one kills, for whoever hangs while ending.

    Outside the main thread, where Python hands out no signals, `event` is just an event.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self.event = threading.Event()
        self._signals = tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._received: signal.Signals | None = None

    @property
    def received(self) -> signal.Signals | None:
        """The signal that came, if one did."""
        return self._received

    def __enter__(self) -> ShutdownSignal:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            # None is a handler that was not installed from Python and cannot be put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._received = signal.Signals(number)
        for each in self._signals:
            signal.signal(each, signal.SIG_DFL)
        # The main thread may be inside event.wait() and hold the event's lock: to set it here could wait for ever.
        _thread.start_new_thread(self.event.set, ())
