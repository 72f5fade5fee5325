"""Helpers of the tests: real servers that end with the process that started them, projects, a website that logs."""

import os
from typing import NoReturn

__all__ = ["LONG", "OPTIONAL", "MissingPartError", "missing", "missing_optional"]

# How reasons begin of skips that are none of CI's business.
OPTIONAL = "not installed, and not a part that `make parts` installs: "

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


def missing_optional(program: str) -> NoReturn:
    """Skip the test for want of a program that `make parts` does not install; in CI too."""
    import pytest

    pytest.skip(f"{OPTIONAL}{program}")
