"""The web page: a read-only view of the store."""
