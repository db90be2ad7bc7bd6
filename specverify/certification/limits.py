"""The largest numbers a request may ask for; beyond them it is a slip, or cannot be carried out.

Nothing is imported, for the command line reads them at load.
"""

ALPHA = 1e-6
"""Probability that a run of a right implementation raises any alarm, by default."""

SMALLEST_ALPHA = 1e-12
LARGEST_ALPHA = 0.05
"""Beyond it an alarm says nothing."""

LARGEST_SEED = 2**63 - 1
"""What torch's generators, and certificates read as JSON, can hold."""

MOST_TOKENS = 10**12
"""Tokens to sample: years of work for the fastest pair."""

MOST_DRAFT_TOKENS = 256
"""Draft tokens a round, many times what any implementation proposes."""

LONGEST_RUN = 100_000
"""Tokens of one run."""

MOST_CALLS = 4096
"""Calls of the subject in one shard: what an interrupt may lose."""

MOST_SHARDS = 2**20
"""Shards of one case, each a file of a run that can be resumed; budgets beyond have larger ones."""
