"""A website that misbehaves on demand and writes down what it saw, in a process of its own.

Tests start it through tests/support/site.py.
"""
