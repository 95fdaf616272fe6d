"""What a service and a client do, in several threads at once: `python -m tests.stress --seconds 60`.

Faults that only threads show are rare on a quiet machine and hide behind lucky memory. Here every odd is made worse: threads
switch every few microseconds, the allocator has one arena that all threads share and overwrites what is freed, and threads
beside the work allocate arrays of the same shapes and look whether another thread has written into them. Each answer is
compared with the one that the same work gave in a single thread.
"""
