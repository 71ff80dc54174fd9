"""GPU kernels in Triton, each with a plain path that it must equal. Triton comes with torch's builds for GPUs."""
