"""Acting: the loop that owns the live memory, evaluation, and sessions of a trained agent."""
