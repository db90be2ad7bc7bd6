"""From cases to evidence, from evidence to a verdict, from verdicts to a certificate."""
