"""The loop: autoregressive and speculative generation, stopping rules, counters."""
