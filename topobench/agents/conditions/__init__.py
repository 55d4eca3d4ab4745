"""
What may disturb a measurement, read before, during and after each run.

Nothing here changes a device's settings. Whatever cannot be read is left out beside its
reason. :mod:`topobench.validity` says what the findings mean for a run.
"""
