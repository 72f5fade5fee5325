"""Tests of the recipe countries (S1)."""
