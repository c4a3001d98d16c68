"""Draft tokens, which the model checks several at a time."""
