"""Turning checkpoints into bundles that serving reads. Only this package imports torch."""
