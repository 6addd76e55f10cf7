"""Circuits: rank units by importance, keep the k best, measure the explained effect."""
