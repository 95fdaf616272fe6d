"""The commit loop: finished rounds become transactions."""
