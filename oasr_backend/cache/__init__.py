"""What running streams keep between chunks: key/value blocks and convolution context."""
