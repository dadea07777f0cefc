"""Reads the SBE schemas and writes the message classes of Python and the layout constants of Rust."""
