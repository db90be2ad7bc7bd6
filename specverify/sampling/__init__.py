"""Samples reduced to mergeable tallies."""
