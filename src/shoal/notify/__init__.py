"""Alerts: which hold for a run, each raised once over the whole fleet, and told to people until they are reached."""
