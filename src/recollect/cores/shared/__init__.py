"""Parts that several cores share."""
