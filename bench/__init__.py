"""Benchmarks: Shoal beside bare loops and its peers, in one run on one server, reported as ratios. See README.md."""
