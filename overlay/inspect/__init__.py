"""What somebody's Kafka holds and allows: samples of topics and a first config made from them, needs held against it.

sample → formats, column → proposal → draft is pure; reading and cluster talk to Kafka, folder to the disk.
"""
