"""The built-in engine: its batch over a paged cache, how it is opened, and a tool that profiles its steps."""
