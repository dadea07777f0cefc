"""Typed settings: declared by the rooms, read from TOML, environment and command line, each with its origin."""

from tensor_pool.config.listing import Row, generate, show
from tensor_pool.config.loading import DEFAULT, Loaded, load
from tensor_pool.config.sections import power_of_two_complaint, section, setting

__all__ = ["DEFAULT", "Loaded", "Row", "generate", "load", "power_of_two_complaint", "section", "setting", "show"]
