"""Dense against sparse: the same task in a model and its sparse twin."""
