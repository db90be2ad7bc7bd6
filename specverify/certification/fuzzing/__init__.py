"""Searching random inputs for one on which a subject is wrong, for as long as one likes."""
