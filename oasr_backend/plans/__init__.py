"""TensorRT plans of a bundle's graphs: what they are built for, how they are built, and whether one still fits."""
