"""Newspapers are run from the command line, so their tests have the projects of the acceptance tests."""

from tests.acceptance.conftest import project

__all__ = ["project"]
