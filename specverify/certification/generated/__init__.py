"""Hypothesis strategies for what subjects are handed; `specverify.strategies` is their public door.

They shrink towards few tokens, few draft tokens, halves and quarters.
"""
