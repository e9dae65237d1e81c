"""A store that validates, counts and drops."""
