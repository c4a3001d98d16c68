"""What is known of models' files: how far they have been downloaded, what they say. Plain values of every process."""
