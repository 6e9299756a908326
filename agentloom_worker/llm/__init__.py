"""Model endpoints: encode a request into stable bytes, send it once, read one complete answer."""
