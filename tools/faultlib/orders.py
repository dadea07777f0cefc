"""How a worker process is spoken to: JSON lines on standard input and output."""

from __future__ import annotations

import json
import queue
import sys
import threading
from typing import Any


def say(event: str, **fields: Any) -> None:
    """One message to the experiment."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def settings() -> Any:
    """What the experiment gave this worker on its command line."""
    return json.loads(sys.argv[1])


class Orders:
    """What the experiment sends, heard by a thread so that a busy worker notices. The order `stop` and the end of input set `stop`."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if order.get("order") == "stop":
                self.stop.set()
            self._waiting.put(order)
        self.stop.set()
        self._waiting.put(None)

    def next(self) -> dict[str, Any] | None:
        """The next order; None when there will be no more."""
        return self._waiting.get()

    def has_waiting(self) -> bool:
        """Whether `next` would return at once."""
        return not self._waiting.empty()

    def wait_for(self, name: str) -> dict[str, Any]:
        """The next order, which has to be this one. The end of input ends the worker."""
        order = self.next()
        if order is None:
            raise SystemExit(0)
        if order.get("order") != name:
            raise ValueError(f"expected the order {name!r}, got {order}")
        return order
