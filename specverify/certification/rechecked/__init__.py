"""A certificate held against its own numbers; `recheck` is the way in."""
