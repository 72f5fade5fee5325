"""Schedules: runs that begin by themselves, each slot once, whichever node is there to see it."""

from __future__ import annotations
