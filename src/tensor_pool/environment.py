"""The environment variables of this package, but for those that override a setting: `config.loading` makes their names.

Whatever else begins with the prefix is a typing error, and is refused as one where settings are read.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "TENSOR_POOL_"

STACK: Final = "TENSOR_POOL_STACK"
"""The stack that `connect()` and the commands join: a runtime directory, or its `stack.json`."""
RUNTIME_DIR: Final = "TENSOR_POOL_RUNTIME_DIR"
"""Where the stack of this user says that it runs."""
FAILPOINTS: Final = "TENSOR_POOL_FAILPOINTS"
"""Where a process under test fails."""
TEST_PARENT: Final = "TENSOR_POOL_TEST_PARENT"
"""The process of the harness that started this one."""

OURS: Final = (STACK, RUNTIME_DIR, FAILPOINTS, TEST_PARENT)
