"""Measuring methods against each other: the engine of ``edge-tr bench`` and of ``bench/``."""
