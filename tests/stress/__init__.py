"""What a service and a client do, in several threads at once: `python -m tests.stress --seconds 60`.

Faults that only threads show are rare on a quiet machine. Here they are made likely: threads switch every few microseconds, all
threads share one arena of the allocator, which overwrites what is freed, and threads beside the work allocate arrays of the
same shapes and check that no other thread writes into them. Each answer is compared with the one that the same work gave in a
single thread.

A kernel that works in freed memory ends in a crash or a wrong answer within seconds; so does a decoder that two threads share.
"""
