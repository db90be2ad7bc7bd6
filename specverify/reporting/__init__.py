"""Certificates written out, one writer a file."""
