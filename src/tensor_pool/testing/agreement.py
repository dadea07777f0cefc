"""What the harness and the processes it starts agree on."""

from __future__ import annotations

import signal
from typing import Final

STACKS_SIGNAL: Final = signal.SIGUSR1
"""Has a child write the stack of every thread to its stderr."""
