"""Tests, bounds, power and budget for sampled tokens; numpy and scipy only, nothing is drawn here.

`goodness` compares counts with a distribution, `support` judges impossible tokens, `pit` reduces
tokens of differing distributions to uniform numbers, `bounds` says how far a distribution may still
be, `power` what a test could have seen, `budget` how false alarms are shared.
"""
