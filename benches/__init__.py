"""`make bench`: what memory can do at best, what this package does, and what its peers do, side by side in one run."""
