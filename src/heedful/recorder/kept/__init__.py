"""Keeps recorded calls: proves them, computes maps and statistics, saves them and opens them."""
