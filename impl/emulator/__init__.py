"""Runs Triton kernels over NumPy: what would be a crash or garbage on a GPU is a finding with a line number."""
