"""Both ledgers, as the ledger's own tests have them."""

from tests.ledger.conftest import either_harness, place, postgres_template

__all__ = ["either_harness", "place", "postgres_template"]
