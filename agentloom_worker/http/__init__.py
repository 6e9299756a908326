"""HTTP/1.1 calls to foreign servers that are bounded in time and that another thread can end at once."""
