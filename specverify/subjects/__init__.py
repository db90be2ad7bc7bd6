"""Implementations under test: protocols, registry, one adapter a file."""
