"""Running torch code while owning its randomness.

A `Steering` mode sees every operation. Random numbers are never drawn: each is a *symbol*, an
element of a source with what was done to it since. Where a symbol decides something (a comparison,
a race, a control-flow branch) the run takes one of the possible outcomes and the path keeps its
exact probability. What cannot be followed raises `CannotSteer`.

Read in this order: `grid`, `symbols`, `shadows` (what is random), `path` (how decisions fork),
`draws` (tokens not looked at yet), then the operations: `sources`, `movement`, `arithmetic`,
`comparisons`, `coins_in_order`, `races`, `certainties`, and `mode`, which routes them. `escapes`,
`generators` and `outside` watch what is no operation; `pinned` runs the real code with chosen
coins.
"""
