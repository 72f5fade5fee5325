"""Keys of records: what makes two records the same one, and where the ledger stores it once."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

KEY_HASH_BYTES = 16


class RecordScope(StrEnum):
    """Where a record key is unique: in the records of a stage of one run, or of that stage in all runs of a scraper."""

    RUN = "run"
    SCRAPER = "scraper"


class OnDuplicate(StrEnum):
    """What happens to a second record with the same key: it is dropped, or it replaces the first."""

    SKIP = "skip"
    REPLACE = "replace"


class RecordKey(msgspec.Struct, frozen=True, gc=False):
    """The key of a record: its JSON text, and the hash that the ledger compares within `scope`."""

    text: str
    hash: bytes
    scope: RecordScope = RecordScope.RUN
    replaces: bool = False

    def space(self, run_no: int) -> int:
        """The number of the key space: that of the run, or 0, in which a hash already distinguishes scrapers."""
        return run_no if self.scope is RecordScope.RUN else 0


def record_key_hash(scraper: str, stage: str, key: str) -> bytes:
    """The same for all runs of a scraper, so that records of two runs can be matched."""
    text = f"shoal-record-key-1\0{scraper}\0{stage}\0{key}"
    return hashlib.sha256(text.encode()).digest()[:KEY_HASH_BYTES]
