"""Cleaning functions: files below this folder name them without a module."""

import re


def without_byline(body):
    """The body without "By Desk 3." at its beginning."""
    return re.sub(r"^By [^.]*\. ", "", body)


def is_local(record):
    """Neither sport nor video."""
    return record["section"] == "local"


def no_notice(record):
    """Not a paid notice."""
    return "paid notice" not in record["body"]
