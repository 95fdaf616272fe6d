"""`overlay demo`: real flights through a real Kafka and a real service, and a check of what came out.

home (its folder) · service (the process and what it says of itself) · verdict and selection (what the outputs must hold;
pure) · outputs (what they hold) · screen (what is shown meanwhile) · play (all of it in order).
"""
