"""The one exception for everything a user can mend."""


class GossamerError(ValueError):
    """What is wrong, the value, and what to do, in one line. The command line prints it and exits with 2."""


class OutOfMemory(GossamerError):
    """Not even one prompt fits. What was done before stays, for a larger device."""
