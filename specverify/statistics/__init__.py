"""Tests, bounds, power and budget for sampled tokens; numpy and scipy only, no token is drawn here.

E-processes decide, since a run may stop at any look (Ville 1939). `mixture` is the one about all
tokens: fixed bets, listed in `bet_components`, evaluated by `bets` from the sums of `bet_library`,
and bets learned by `dirichlet`, which also judges counts of a single law; `cells` adds hits on
impossible ones. `tilt` learns from tokens grouped by context, `independence` bets on coupled
randomness, `support` on impossible tokens.
`budget` says how the false alarms of a run are shared and how e-values are combined.

Bounds say how far a distribution may still be: `bounds` at one look, `sequences` at every look.

Power, predicted: `e_power` for e-processes, with `tilt_power` and `independence_power` for two of
them; `power` for chi-squared and G tests, `homogeneity_power` for two samples, `pit_power` for
bands. `triples` puts the samples needed, and the deviation seen, beside each decision.

Tests at a sample size fixed beforehand, descriptive where something else chose when to stop:
`goodness` compares counts with a distribution, `small_samples` those too few to pool, `homogeneity`
two samples. `pit` reduces tokens of differing distributions to uniform numbers. `strata` checks
what all of them are given, `result` is what tests return.
"""
