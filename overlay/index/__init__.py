"""Step 4: chunk headers, what they say, and which chunks a reader can pass over (pure)."""
