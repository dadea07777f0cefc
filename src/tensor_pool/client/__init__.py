"""What a session does with the driver: leases, mappings, and the producers and consumers that users hold."""
