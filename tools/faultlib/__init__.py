"""The experiments of docs/reliability.md, one module each, and what they share."""
