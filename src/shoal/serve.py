"""What a project's own routes of `shoal serve` ask for; docs/howto/routes.md. Needs `shoal[serve]`."""

from shoal.control.answers import Preview
from shoal.control.routes import ServedFleet

__all__ = ["Preview", "ServedFleet"]
