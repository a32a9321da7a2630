"""A league: past selves and scripted players as opponents of the agent in training."""
