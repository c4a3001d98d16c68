"""A model's structure, from watching a copy of it run: the recipe of what it computes."""
