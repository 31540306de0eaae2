"""Load on real systems, side by side: what arrives, who is asked, what is measured and how it is told."""
