"""Many small scrapers run together: singles side by side, the members of a group one after another."""

from __future__ import annotations
