"""Real parts for tests and benchmarks: a PostgreSQL and a PgBouncer that end with whoever started them."""

import os
from typing import NoReturn

import pytest

__all__ = ["MissingPartError", "missing"]


class MissingPartError(Exception):
    """A program that the part needs is not installed; the message says how to get it."""


def missing(reason: str) -> NoReturn:
    """Skip the test for want of a part; in CI, where nothing may go untested, fail it instead."""
    if os.environ.get("CI"):
        pytest.fail(f"CI needs every part: {reason}", pytrace=False)
    pytest.skip(reason)
