"""Policies: encoder, core and heads, and the statistics that travel with them."""
