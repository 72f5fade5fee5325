"""Autoscaling: measures the load, applies the sizing rule, reports changes."""
