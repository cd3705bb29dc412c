"""Names the axes of a call (batch, heads, queries, keys), and finds its padding and token ids."""
