"""A duration-aware speech-recognition server for Triton."""
