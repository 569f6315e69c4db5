"""Constrained decoding: a byte-level automaton, the token bitmask of each state, the matcher that follows a text."""
