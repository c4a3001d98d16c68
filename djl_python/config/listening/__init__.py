"""The addresses on which a server listens, and their schemes. Runs in the front end."""
