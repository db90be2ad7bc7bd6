"""Joint distributions of token sequences computed without sampling, from plain callables.

`prefix_tree` enumerates the stopped autoregressive distribution and maps runs to its cells; `joint`
compares distributions and composes block kernels.
"""
