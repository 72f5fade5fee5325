"""Alerts: conditions of runs, each alert raised once across all processes and delivered with retries."""
