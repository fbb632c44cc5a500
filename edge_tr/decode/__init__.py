"""The loop: prefill, then draft, verify, accept, keep, recycle. Works on any ``TargetModel``."""
