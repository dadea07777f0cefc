"""The wire: every message of the four schemas, and what they share.

`control` (900), `driver` (901), `bridge` (902) and `discovery` (910) are generated from `schemas/`; `codec` holds what they call.
"""
