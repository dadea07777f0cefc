"""Regions in shared memory: where they are, how they are cut, who may open them, when they are removed."""
