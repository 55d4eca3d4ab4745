"""
Foreign results as values: text in, a document out, and nothing else.

Nothing here opens a file, reads a clock or keeps what it was not asked for: environments and
command lines of other tools may hold secrets and are dropped. Whatever a text holds, only
:class:`topobench.errors.ImportFailed` comes out beside a document.
"""
