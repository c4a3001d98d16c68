"""Build a program's operations from a recipe, part by part of a decoder."""
