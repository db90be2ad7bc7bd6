"""The conformance suite: one module per chapter of the contract."""
