"""What a user would pick instead, each in a file of its own, set up as fast as we know how."""
