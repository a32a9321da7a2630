"""Acting: the loop that owns the live state, evaluation, and sessions of a trained agent."""
