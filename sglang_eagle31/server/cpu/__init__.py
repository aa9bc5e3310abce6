"""What SGLang needs from `sgl_kernel` to run EAGLE speculative decoding on a CPU without AMX."""
