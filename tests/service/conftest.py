"""The ledger harness of tests/ledger, for tests of services in this process."""

from tests.ledger.conftest import either_harness, place, postgres_template

__all__ = ["either_harness", "place", "postgres_template"]
