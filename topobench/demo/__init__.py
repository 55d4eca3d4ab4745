"""
A synthetic fleet with planted effects, to try everything without hardware.

``effects`` reads what is planted, ``hosts`` and ``cases`` say what the machines are and what
a typical one gives, ``noise`` how measurements vary, ``fleet`` makes the sweeps; all of that
is pure. ``writing`` puts them into a store of their own.
"""
