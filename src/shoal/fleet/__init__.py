"""A pool: several workers on one machine, started, watched, restarted and sent home together."""
