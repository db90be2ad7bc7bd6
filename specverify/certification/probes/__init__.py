"""Probes: small cases that a property makes for itself, and what it may do with a subject there.

A property whose evidence is `probed` is called once for each of its inputs, with a trial of the
subject's kind (`rule_trial`, `decoder_trial`, `transform_trial`). The trial calls the subject,
guarded like all calls, or computes what it emits; where that cannot be followed, it samples.
"""
