"""From an encoder's log-probabilities to tokens, and from tokens to text."""
