"""Schedules are kept from the command line, so their tests have the projects of the acceptance tests."""

from tests.acceptance.conftest import either, fleet, migrated_postgres, migrated_template, project

__all__ = ["either", "fleet", "migrated_postgres", "migrated_template", "project"]
