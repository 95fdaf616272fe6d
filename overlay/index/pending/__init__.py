"""How many records are pending for a consumer, and the last record of each subject, by chunk
headers. Pure.
"""
