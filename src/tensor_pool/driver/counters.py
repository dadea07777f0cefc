"""What the driver counts. One append-only list; every refused message raises exactly one of these."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class DriverCounters:
    """Since the driver started."""

    attach_requests_accepted: int = 0
    attach_requests_repeated: int = 0
    """Asked again with the same ids: answered with the same lease, or answered soon."""
    attach_requests_unsupported: int = 0
    attach_requests_invalid: int = 0
    attach_requests_rejected: int = 0
    attach_requests_failed: int = 0
    detach_requests_accepted: int = 0
    detach_requests_rejected: int = 0
    keepalives_accepted: int = 0
    keepalives_unmatched: int = 0
    """For a lease that is unknown, over, or another's: ignored, never revived (decision E93)."""
    hellos_accepted: int = 0
    hellos_unknown_stream: int = 0
    messages_malformed: int = 0
    leases_detached: int = 0
    leases_expired: int = 0
    leases_revoked: int = 0
    epochs_made: int = 0
    epochs_failed: int = 0
    announces_sent: int = 0
    announces_refused: int = 0
    """Not taken by Aeron; the next period repeats them."""
    messages_sent: int = 0
    messages_unsent: int = 0
    """Given up after their deadline, or because too many waited."""
    stalls_credited: int = 0
    longest_cycle_ns: int = 0

    def snapshot(self) -> dict[str, int]:
        return asdict(self)
