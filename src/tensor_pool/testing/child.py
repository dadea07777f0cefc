"""How the harness starts Python: `python -m tensor_pool.testing.child module:function arguments...`.

Before the function runs: the child dies with its parent, SIGUSR1 writes every thread's stack to stderr, and the failpoints of
`TENSOR_POOL_FAILPOINTS` are armed. The function finds its arguments in `sys.argv[1:]`; what it returns is the exit code.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import signal
import sys
from typing import Final

from tensor_pool.environment import TEST_PARENT
from tensor_pool.testing.agreement import STACKS_SIGNAL

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends; end now when the parent has gone already."""
    parent = os.environ.pop(TEST_PARENT, "")
    if not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)


def main() -> int:
    target = sys.argv[1]
    sys.argv = [target, *sys.argv[2:]]
    die_with_parent()
    # whoever was started in the background of a script ignores Ctrl-C, and would pass that on
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)
    # after the lines above, so that a hang while loading can be looked into as well
    from tensor_pool.testing.failpoints import arm_from_environment

    arm_from_environment()
    module, _, function = target.partition(":")
    result = getattr(importlib.import_module(module), function)()
    return int(result or 0)


if __name__ == "__main__":
    sys.exit(main())
