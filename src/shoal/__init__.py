"""Shoal runs scrapers in parallel and across machines on a ledger that loses nothing."""


def __getattr__(name: str) -> str:
    if name == "__version__":
        # Asked for rarely, and slow to find out: not at import.
        from importlib.metadata import version

        return version("shoal")
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")
