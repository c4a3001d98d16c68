"""Messages between processes, and the processes themselves."""
