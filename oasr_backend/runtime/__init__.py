"""What runs a bundle's graphs on this machine."""
