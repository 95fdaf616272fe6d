"""A test of the simulation: faults put into the product on purpose, each of which some history has to find."""
