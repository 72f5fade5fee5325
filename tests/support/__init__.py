"""Helpers of the tests: real servers that end with the process that started them, projects, a website that logs."""

import os
from typing import NoReturn

__all__ = ["LONG", "MissingPartError", "missing"]

# `make chaos` asks for the long versions of tests.
LONG = os.environ.get("SHOAL_CHAOS") == "long"


class MissingPartError(Exception):
    """A program that the part needs is not installed; the message says how to get it."""


def missing(reason: str) -> NoReturn:
    """Skip the test for want of a part; in CI, where nothing may go untested, fail it instead."""
    import pytest  # the test website runs without site-packages

    if os.environ.get("CI"):
        pytest.fail(f"CI needs every part: {reason}", pytrace=False)
    pytest.skip(reason)
