"""Public helpers for tests.

For authors of scrapers, without any extra: `yielded_by`, `followed_by`, `FakeHttp`, `RecordedLog`, `LocalSite`,
`load_page`, `save_page`; pytest finds the fixtures `shoal_page` and `shoal_site` by itself. For authors of ledgers,
with `shoal[testing]`: `shoal.testing.conformance` (a suite), `shoal.testing.machine` (a model-based state machine) and
`shoal.testing.harness` (fault injection).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.testing.fake_http import FakeHttp
    from shoal.testing.saved_pages import load_page, save_page
    from shoal.testing.site import LocalSite
    from shoal.testing.stages import RecordedLog, followed_by, yielded_by

__all__ = ["FakeHttp", "LocalSite", "RecordedLog", "followed_by", "load_page", "save_page", "yielded_by"]
_HOMES = {
    "FakeHttp": "fake_http",
    "LocalSite": "site",
    "RecordedLog": "stages",
    "followed_by": "stages",
    "load_page": "saved_pages",
    "save_page": "saved_pages",
    "yielded_by": "stages",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"shoal.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'shoal.testing' has no attribute {name!r}")
