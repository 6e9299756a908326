"""One file a step; the table is in runtime/table.py. None imports another: the next is known by its name."""
