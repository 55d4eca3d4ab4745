"""The checks of ``topobench doctor``, by what they are about."""
