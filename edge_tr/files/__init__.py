"""Where files lie and how they are written whole; things that must be closed. Knows nothing
else."""
