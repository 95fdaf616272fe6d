"""Numbers and times in text, read by kernels."""
