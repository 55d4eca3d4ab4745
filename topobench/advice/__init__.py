"""
What to do with one host, from what was measured on it. Pure.

Nothing is advised that was not measured. Each piece says its effect with an interval, or that
there is no measurable gain, or what would have to be measured first.
"""

from topobench.advice.host import advise
from topobench.advice.words import Advice, Outlook, RingFile

__all__ = ["Advice", "Outlook", "RingFile", "advise"]
