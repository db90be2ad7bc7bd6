"""The smallest input on which a subject fails, and the argument that it does."""
