"""What every test of this project has: the shipped test kit, and the tools to import."""

from __future__ import annotations

import sys
from pathlib import Path

pytest_plugins = ["tensor_pool.testing.plugin"]

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
