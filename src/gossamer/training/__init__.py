"""Post-train a model so that almost all of its attention edges are gone at unchanged loss."""
