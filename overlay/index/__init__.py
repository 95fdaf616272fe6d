"""Step 4: a stream's index: chunk headers, the ledger of sequences, pending counts, and start
positions of consumers.
"""
