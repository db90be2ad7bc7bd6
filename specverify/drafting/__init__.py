"""Who proposes: draft models, prompt lookup, early exit and block-length schedules."""
